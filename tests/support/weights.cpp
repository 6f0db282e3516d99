// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Making bytes such as models have.

#include "support/weights.hpp"

#include "support/normal_values.hpp"

#include <bit>
#include <cstring>

namespace gpu_sleep::test {
namespace {

/// `count` values that `make(normal)` makes, in a row.
template <class Make>
ByteVector make_values(std::size_t count, std::uint64_t seed, Make&& make) {
    NormalValues normal(seed);
    using Value = decltype(make(0.0F));
    ByteVector bytes(count * sizeof(Value));
    for (std::size_t i = 0; i < count; ++i) {
        const Value value = make(normal.next());
        std::memcpy(&bytes[i * sizeof(value)], &value, sizeof(value));
    }
    return bytes;
}

} // namespace

ByteVector random_bytes(std::size_t count, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    ByteVector bytes(count);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random() >> 56);
    return bytes;
}

ByteVector normal_fp32(std::size_t count, std::uint64_t seed) {
    return make_values(count, seed, [](float value) { return value; });
}

ByteVector normal_bf16(std::size_t count, std::uint64_t seed) {
    return make_values(count, seed, [](float value) {
        constexpr std::uint32_t k_half = 0x8000;
        return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + k_half) >> 16);
    });
}

ByteVector normal_e4m3(std::size_t count, std::uint64_t seed) {
    return make_values(count, seed, [](float value) {
        constexpr float k_scale = 448.0F / 4.0F;
        const auto scaled = std::min(std::abs(value) * k_scale, 448.0F);
        int exponent = std::max(std::ilogb(std::max(scaled, 1e-6F)), -6);
        auto mantissa = static_cast<int>(std::lround(std::ldexp(scaled, 3 - exponent))); // 8 to 16
        if (mantissa == 16) {
            mantissa = 8;
            ++exponent;
        }
        const int magnitude = mantissa < 8 ? mantissa : (exponent + 7) << 3 | (mantissa - 8);
        return static_cast<std::uint8_t>((std::signbit(value) ? 0x80 : 0) | std::min(magnitude, 0x7E));
    });
}

bool are_equal(std::span<const std::byte> left, std::span<const std::byte> right) {
    return left.size() == right.size() &&
           (left.empty() || std::memcmp(left.data(), right.data(), left.size()) == 0);
}

void fill_without_zeros(std::span<std::uint8_t> bytes, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
        std::uint64_t word = random();
        word |= ((word - 0x0101010101010101) & ~word & 0x8080808080808080) >> 7; // 1 for each zero
        std::memcpy(&bytes[at], &word, std::min(sizeof word, bytes.size() - at));
    }
}

} // namespace gpu_sleep::test
