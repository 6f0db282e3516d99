// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the rules of pools share with those of graphs that allocate.

#pragma once

#include "rules.hpp"

namespace gpu_sleep::driver_rules {

inline constexpr std::size_t k_bytes = 3 * k_granularity + 100;

[[nodiscard]] inline CUdeviceptr allocate_async(CUstream stream, std::size_t bytes = k_bytes) {
    CUdeviceptr address = 0;
    REQUIRE(cuMemAllocAsync(&address, bytes, stream) == CUDA_SUCCESS);
    return address;
}

/// Not to be asked of a real driver once the memory was freed: the documentation leaves the answer open.
[[nodiscard]] inline bool is_known(CUdeviceptr address) {
    unsigned type = 0;
    return cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS;
}

} // namespace gpu_sleep::driver_rules
