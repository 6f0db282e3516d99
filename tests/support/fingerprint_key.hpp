// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Keys that are the same at each run, for tests of fingerprints.

#pragma once

#include "driver/kernels/fingerprint.hpp"

#include <cstddef>
#include <cstring>
#include <vector>

namespace gpu_sleep::test {

/// The first numbers of the generator SplitMix64 (Steele, Lea, Flood, 2014).
[[nodiscard]] inline std::vector<std::uint64_t> numbers(std::size_t count, std::uint64_t seed) {
    std::vector<std::uint64_t> found(count);
    for (auto& number : found) {
        number = seed += 0x9E3779B97F4A7C15;
        number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9;
        number = (number ^ number >> 27) * 0x94D049BB133111EB;
        number ^= number >> 31;
    }
    return found;
}

[[nodiscard]] inline driver::FingerprintKey fixed_key(std::uint64_t seed) {
    const auto words = numbers(sizeof(driver::FingerprintKey) / 8, seed);
    driver::FingerprintKey key;
    std::memcpy(&key, words.data(), sizeof key);
    return key;
}

} // namespace gpu_sleep::test
