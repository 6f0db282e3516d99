// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the rules of pools share with those of graphs that allocate.

#pragma once

#include "rules.hpp"

namespace gpu_sleep::driver_rules {

inline constexpr std::size_t k_bytes = 3 * k_granularity + 100;

inline constexpr cuuint64_t k_all = ~cuuint64_t{0}; ///< of a pool's release threshold

[[nodiscard]] inline CUmemoryPool make_pool(std::size_t most_bytes = 0) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    properties.maxSize = most_bytes;
    CUmemoryPool pool = nullptr;
    REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
    return pool;
}

[[nodiscard]] inline cuuint64_t number(CUmemoryPool pool, CUmemPool_attribute attribute) {
    cuuint64_t value = 0;
    REQUIRE(cuMemPoolGetAttribute(pool, attribute, &value) == CUDA_SUCCESS);
    return value;
}

inline void set(CUmemoryPool pool, CUmemPool_attribute attribute, cuuint64_t value) {
    REQUIRE(cuMemPoolSetAttribute(pool, attribute, &value) == CUDA_SUCCESS);
}

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
