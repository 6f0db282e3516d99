// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Numbers that look random, and are the same each time.

#pragma once

#include <cstdint>

namespace gpu_sleep::test {

/// Source: Steele, Lea and Flood, splitmix64, of the state `seed`.
[[nodiscard]] inline std::uint64_t splitmix64(std::uint64_t seed) noexcept {
    std::uint64_t value = seed + 0x9E3779B97F4A7C15U;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
    return value ^ (value >> 31);
}

} // namespace gpu_sleep::test
