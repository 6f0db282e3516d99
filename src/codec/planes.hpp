// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Byte planes: the first bytes of all values together, then the second bytes, and so on.

#pragma once

#include <cstddef>
#include <span>

namespace gpu_sleep::codec {

inline constexpr unsigned k_widest = 4;

/// Splits values of `width` bytes (2 or 4, little endian) into planes: plane p of `planes`, which lie one
/// after the other, has byte p of each value after rotating the value left by one bit. That brings the eight
/// exponent bits of bf16 and fp32 together in the last plane. `values` and `planes` are of one size, a
/// multiple of `width`, and do not overlap. Thread-safe.
void split_planes(unsigned width, std::span<const std::byte> values, std::span<std::byte> planes) noexcept;

/// The reverse, from planes that may lie anywhere: `planes[p]` for p below `width`, each values.size() /
/// width bytes long.
void join_planes(unsigned width, const std::byte* const* planes, std::span<std::byte> values) noexcept;

} // namespace gpu_sleep::codec
