// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Work of the capture programs: launching kernels, filling memory with what looks random, and its hash.

#pragma once

#include "intercepted_memory.hpp"
#include "support/noise.hpp"

namespace gpu_sleep::test {

/// A number that is never zero for long.
[[nodiscard]] inline std::uint64_t noise_at(std::uint64_t seed, std::uint64_t index) noexcept {
    return splitmix64(seed * 0x100000001U + index);
}

/// capture_noise(uint64_t* to, uint64_t count, uint64_t seed): writes noise_at(seed, i) for each i.
inline constexpr const char* k_noise_kernel = "capture_noise";

/// Makes every module have it.
void register_noise_kernel();

/// The hash of what `memory` holds; through both mappings, if there are two, which must show the same.
/// Errors: driver_failed, internal.
[[nodiscard]] Result<std::string> hash_of_contents(const Memory& memory);

/// Fills memory of the kind "array", by a copy, with noise_at(seed, i). Errors: driver_failed.
[[nodiscard]] Result<void> fill_array(const Memory& memory, std::uint64_t seed);

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
