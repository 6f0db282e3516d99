// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the rules of pools share with those of graphs that allocate.

#pragma once

#include "rules.hpp"

namespace gpu_sleep::driver_rules {

inline constexpr std::size_t k_bytes = 3 * k_granularity + 100;

inline constexpr cuuint64_t k_all = ~cuuint64_t{0}; ///< of a pool's release threshold

[[nodiscard]] inline CUdeviceptr allocate_async(CUstream stream) {
    return driver_testing::allocate_async(stream, k_bytes);
}

/// Not to be asked of a real driver once the memory was freed: the documentation leaves the answer open.
[[nodiscard]] inline bool is_known(CUdeviceptr address) {
    unsigned type = 0;
    return cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS;
}

} // namespace gpu_sleep::driver_rules
