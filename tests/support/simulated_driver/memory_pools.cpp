// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory pools: cuMemPool* and the pools of a device. The blocks in them are pool_blocks.cpp's.

#include "support/simulated_driver/memory_pools.hpp"

#include "support/simulated_driver/entry.hpp"

namespace gpu_sleep::sim {
namespace {

bool is_switch(CUmemPool_attribute attribute) noexcept {
    return attribute == CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
           attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC ||
           attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

CUresult set_attribute(MemoryPool& pool, CUmemPool_attribute attribute, const void* value) {
    if (is_switch(attribute)) {
        pool.reuse[attribute] = *static_cast<const int*>(value) != 0 ? 1 : 0;
        return CUDA_SUCCESS;
    }
    const auto number = *static_cast<const cuuint64_t*>(value);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool.threshold = number; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        if (number != 0) return CUDA_ERROR_INVALID_VALUE;
        pool.reserved_high = pool.reserved;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (number != 0) return CUDA_ERROR_INVALID_VALUE;
        pool.used_high = pool.used;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult get_attribute(const MemoryPool& pool, CUmemPool_attribute attribute, void* value) {
    if (is_switch(attribute)) {
        const auto found = pool.reuse.find(attribute);
        *static_cast<int*>(value) = found == pool.reuse.end() ? 1 : found->second;
        return CUDA_SUCCESS;
    }
    auto& number = *static_cast<cuuint64_t*>(value);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: number = pool.threshold; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: number = pool.reserved; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: number = pool.reserved_high; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: number = pool.used; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: number = pool.used_high; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

} // namespace

} // namespace gpu_sleep::sim

SIM_ENTRY(safe, 11020) cuDeviceGetDefaultMemPool(Call& c, CUmemoryPool* pool, CUdevice device) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    return give(pool, c.driver.default_pools[static_cast<std::size_t>(device)]->handle);
}

SIM_ENTRY(safe, 11020) cuDeviceGetMemPool(Call& c, CUmemoryPool* pool, CUdevice device) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    return give(pool, c.driver.current_pools[static_cast<std::size_t>(device)]->handle);
}

SIM_ENTRY(safe, 11020) cuDeviceSetMemPool(Call& c, CUdevice device, CUmemoryPool handle) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    const auto pool = c.driver.memory_pools.find(handle);
    if (!pool || pool->device != device || pool->is_imported) return CUDA_ERROR_INVALID_VALUE;
    c.driver.current_pools[static_cast<std::size_t>(device)] = pool;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 11020) cuMemPoolCreate(Call& c, CUmemoryPool* handle, const CUmemPoolProps* properties) {
    if (!handle || !properties || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (properties->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!c.driver.has_device(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    const auto pool = std::make_shared<MemoryPool>();
    pool->device = properties->location.id;
    pool->handle_types = properties->handleTypes;
    if (properties->maxSize != 0) pool->most_bytes = properties->maxSize;
    pool->handle = c.driver.memory_pools.insert(pool);
    *handle = pool->handle;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 11020) cuMemPoolDestroy(Call& c, CUmemoryPool handle) {
    SIM_FIND(pool, c.driver.memory_pools.find(handle), CUDA_ERROR_INVALID_VALUE);
    const auto& default_pool = c.driver.default_pools[static_cast<std::size_t>(pool->device)];
    if (pool == default_pool) return CUDA_ERROR_INVALID_VALUE;
    // What is still allocated goes when it is freed.
    c.driver.memory_pools.remove(handle);
    if (pool->is_imported) note_standing(Standing::pool_import, -1);
    synchronize_all_pools(c.driver);
    auto& current = c.driver.current_pools[static_cast<std::size_t>(pool->device)];
    if (current == pool) current = default_pool;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 11020)
cuMemPoolSetAttribute(Call& c, CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    SIM_FIND(pool, c.driver.memory_pools.find(handle), CUDA_ERROR_INVALID_VALUE);
    return value ? set_attribute(*pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
}

SIM_ENTRY(unsafe, 11020)
cuMemPoolGetAttribute(Call& c, CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    SIM_FIND(pool, c.driver.memory_pools.find(handle), CUDA_ERROR_INVALID_VALUE);
    return value ? get_attribute(*pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
}

SIM_ENTRY(safe, 11020) cuMemPoolTrimTo(Call& c, CUmemoryPool handle, std::size_t bytes) {
    SIM_FIND(pool, c.driver.memory_pools.find(handle), CUDA_ERROR_INVALID_VALUE);
    trim(c.driver, *pool, bytes);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 11020)
cuMemPoolSetAccess(Call& c, CUmemoryPool handle, const CUmemAccessDesc* descriptions, std::size_t count) {
    SIM_FIND(pool, c.driver.memory_pools.find(handle), CUDA_ERROR_INVALID_VALUE);
    if (!descriptions && count > 0) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
        const auto& location = descriptions[i].location;
        const bool takes_from_owner =
            location.id == pool->device && descriptions[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || takes_from_owner) return CUDA_ERROR_INVALID_VALUE;
        if (!c.driver.has_device(location.id)) return CUDA_ERROR_INVALID_DEVICE;
    }
    for (std::size_t i = 0; i < count; ++i) pool->access[descriptions[i].location.id] = descriptions[i].flags;
    return grant_access(c.driver, *pool);
}

SIM_ENTRY(safe, 11020)
cuMemPoolGetAccess(Call& c, CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
    SIM_FIND(pool, c.driver.memory_pools.find(handle), CUDA_ERROR_INVALID_VALUE);
    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    const auto granted = pool->access.find(location->id);
    *flags = location->id == pool->device    ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : granted == pool->access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE
                                             : granted->second;
    return CUDA_SUCCESS;
}
