// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Bytes such as models have: normally distributed weights in the formats that are in use, and others. The
// same for the same seed.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gpu_sleep::test {

using ByteVector = std::vector<std::byte>;

/// Random bytes, none more likely than others.
[[nodiscard]] ByteVector random_bytes(std::size_t count, std::uint64_t seed = 1);

/// `count` values of four and of two bytes.
[[nodiscard]] ByteVector normal_fp32(std::size_t count, std::uint64_t seed = 1);
[[nodiscard]] ByteVector normal_bf16(std::size_t count, std::uint64_t seed = 1);

/// 8-bit floating point (e4m3) scaled so that the largest of 4096 or so weights is the largest number.
[[nodiscard]] ByteVector normal_e4m3(std::size_t count, std::uint64_t seed = 1);

/// Compares them at once: std::equal takes bytes one by one, which a sanitizer looks at one by one.
[[nodiscard]] bool are_equal(std::span<const std::byte> left, std::span<const std::byte> right);

/// Random bytes, none of them zero.
void fill_without_zeros(std::span<std::uint8_t> bytes, std::uint64_t seed = 1);

} // namespace gpu_sleep::test
