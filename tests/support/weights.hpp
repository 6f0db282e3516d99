// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Bytes such as models have: normally distributed weights in the formats that are in use, and others.

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace gpu_sleep::test {

using ByteVector = std::vector<std::byte>;

/// Random bytes, none more likely than others.
[[nodiscard]] inline ByteVector random_bytes(std::size_t count, std::uint64_t seed = 1) {
    std::mt19937_64 random(seed);
    ByteVector bytes(count);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random() >> 56);
    return bytes;
}

/// `count` values that `value(normal, random)` makes, in a row.
template <class Make>
[[nodiscard]] ByteVector make_values(std::size_t count, std::uint64_t seed, Make&& make) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    using Value = decltype(make(0.0F));
    ByteVector bytes(count * sizeof(Value));
    for (std::size_t i = 0; i < count; ++i) {
        const Value value = make(normal(random));
        std::memcpy(&bytes[i * sizeof(value)], &value, sizeof(value));
    }
    return bytes;
}

[[nodiscard]] inline ByteVector normal_fp32(std::size_t count, std::uint64_t seed = 1) {
    return make_values(count, seed, [](float value) { return value; });
}

[[nodiscard]] inline ByteVector normal_bf16(std::size_t count, std::uint64_t seed = 1) {
    return make_values(count, seed, [](float value) {
        constexpr std::uint32_t k_half = 0x8000;
        return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + k_half) >> 16);
    });
}

/// 8-bit floating point (e4m3) scaled so that the largest of 4096 or so weights is the largest number.
[[nodiscard]] inline ByteVector normal_e4m3(std::size_t count, std::uint64_t seed = 1) {
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

/// Byte values of which each is half as likely as the one before, down to a single one.
[[nodiscard]] inline ByteVector halving_bytes(std::size_t count, unsigned values, std::uint64_t seed = 1) {
    std::mt19937_64 random(seed);
    ByteVector bytes(count);
    for (auto& byte : bytes)
        byte = static_cast<std::byte>(
            37 * std::min(static_cast<unsigned>(std::countl_zero(random() | 1)), values - 1));
    return bytes;
}

} // namespace gpu_sleep::test
