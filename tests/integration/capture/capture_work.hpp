// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Kernels of the capture programs: launching one, and the one that fills memory with what looks random.

#pragma once

#include "capture_memory.hpp"

#include <cstdint>

namespace gpu_sleep::test {

/// A number that looks random, and is never zero for long. Source: Steele, Lea and Flood, splitmix64.
[[nodiscard]] inline std::uint64_t noise_at(std::uint64_t seed, std::uint64_t index) noexcept {
    std::uint64_t value = seed * 0x100000001U + index + 0x9E3779B97F4A7C15U;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
    return value ^ (value >> 31);
}

/// capture_noise(uint64_t* to, uint64_t count, uint64_t seed): writes noise_at(seed, i) for each i.
inline constexpr const char* k_noise_kernel = "capture_noise";

/// Makes every module have it.
void register_noise_kernel();

/// Launches `kernel` of `module` with one thread. Errors: driver_failed.
template <class... Arguments>
Result<void> launch(CUmodule module, const char* kernel, CUstream stream, Arguments... arguments) {
    CUfunction function = nullptr;
    GPU_SLEEP_TEST_CALL(cuModuleGetFunction, &function, module, kernel);
    void* parameters[] = {&arguments...};
    GPU_SLEEP_TEST_CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
    return {};
}

} // namespace gpu_sleep::test
