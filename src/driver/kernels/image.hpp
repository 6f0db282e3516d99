// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Where the compiled kernels are.

#pragma once

namespace gpu_sleep::driver {

/// A fat binary for cuModuleLoadData, with machine code for current GPUs and PTX for later ones. Static.
[[nodiscard]] const void* kernel_image() noexcept;

inline constexpr const char* k_fingerprint_kernel = "gpu_sleep_fingerprint";
inline constexpr const char* k_copy_kernel = "gpu_sleep_copy";

} // namespace gpu_sleep::driver
