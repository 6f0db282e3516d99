// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Making contents of blocks.

#include "support/blocks.hpp"

#include "support/normal_values.hpp"

namespace gpu_sleep::test {
namespace {

/// The nearest number of eight bits of mantissa.
std::uint16_t to_bf16(float value) {
    std::uint32_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    return static_cast<std::uint16_t>((word + 0x7FFF + (word >> 16 & 1)) >> 16);
}

/// The nearest number of eleven bits of mantissa, 0 instead of what is too small and none that is too large.
std::uint16_t to_fp16(float value) {
    int exponent = 0;
    const auto mantissa = std::lrint(std::frexp(std::abs(value), &exponent) * 2048);
    if (exponent < -13) return 0;
    return static_cast<std::uint16_t>((value < 0 ? 0x8000 : 0) | (((exponent + 13) << 10) + mantissa));
}

} // namespace

std::vector<BlockContents> block_contents() {
    static constexpr auto normal = [](std::uint64_t seed) {
        return [values = NormalValues(seed)]() mutable { return values.next(); };
    };
    const auto of = [](auto make) {
        return [make](std::size_t bytes) {
            return bytes_of(bytes, [next = make](std::size_t i) mutable { return next(i); });
        };
    };
    return {
        {"bf16",
         [](std::size_t bytes) {
             auto made = normal_bf16(bytes / 2 + 1);
             made.resize(bytes);
             return made;
         }},
        {"bf16 of two scales", of([n = normal(2)](std::size_t i) mutable {
             return to_bf16(n() * (i / 512 % 2 == 0 ? 1.0F : 0.02F));
         })},
        {"bf16 of one sign", of([n = normal(3)](std::size_t) mutable { return to_bf16(std::abs(n())); })},
        {"fp16", of([n = normal(4)](std::size_t) mutable { return to_fp16(n() * 0.02F); })},
        {"fp32", of([n = normal(5)](std::size_t) mutable { return n() * 0.02F; })},
        {"a first moment", of([n = normal(6)](std::size_t) mutable {
             const auto scale = std::exp2(2 * n());
             return n() * 1e-4F * scale;
         })},
        {"a second moment", of([n = normal(7)](std::size_t) mutable {
             const auto scale = n() * std::exp2(n());
             return scale * scale * 1e-9F;
         })},
        {"e4m3", [](std::size_t bytes) { return normal_e4m3(bytes); }},
        {"random", [](std::size_t bytes) { return random_bytes(bytes); }},
        {"one exponent", of([r = std::mt19937(8)](std::size_t) mutable {
             return static_cast<std::uint16_t>(0x3F80 | (r() & 0x807F));
         })},
        {"one value", of([](std::size_t) { return std::uint16_t{0xBF9A}; })},
        {"not a number", of([r = std::mt19937(9)](std::size_t) mutable {
             constexpr std::uint16_t k_all[] = {0x7FC0, 0xFF80, 0x7F80, 0xFFFF, 0x7FC1};
             return k_all[r() % 5];
         })},
        {"zeros", [](std::size_t bytes) { return ByteVector(bytes); }},
        {"half of it random",
         [](std::size_t bytes) {
             auto made = normal_bf16(bytes / 2 + 1);
             made.resize(bytes);
             const auto noise = random_bytes(bytes / 2);
             std::copy(noise.begin(), noise.end(), made.begin());
             return made;
         }},
    };
}

} // namespace gpu_sleep::test
