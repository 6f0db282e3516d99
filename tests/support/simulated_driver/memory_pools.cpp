// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory pools: cuMemPool*, the pools of a device, and the blocks in them.

#include "support/simulated_driver/memory_pools.hpp"

#include "base/units.hpp"
#include "support/simulated_driver/entry.hpp"

#include <algorithm>

namespace gpu_sleep::sim {
namespace {

bool is_switch(CUmemPool_attribute attribute) noexcept {
    return attribute == CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
           attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC ||
           attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

void count_used(MemoryPool& pool, std::uint64_t bytes) {
    pool.used += bytes;
    pool.used_high = std::max(pool.used_high, pool.used);
}

/// The smallest block that `pool` keeps and that is fit for `reserved` bytes; end() if there is none.
std::map<std::uint64_t, PoolBlock>::iterator find_kept(Driver& driver, const MemoryPool& pool,
                                                       std::uint64_t reserved) {
    auto best = driver.blocks.end();
    for (auto it = driver.blocks.begin(); it != driver.blocks.end(); ++it) {
        const auto& block = it->second;
        const bool fits = block.pool.get() == &pool && block.state == PoolBlock::State::kept &&
                          block.reserved >= reserved && block.reserved / 2 <= reserved;
        if (fits && (best == driver.blocks.end() || block.reserved < best->second.reserved)) best = it;
    }
    return best;
}

std::map<std::uint64_t, PoolBlock>::iterator remove_block(Driver& driver,
                                                          std::map<std::uint64_t, PoolBlock>::iterator it) {
    driver.space.remove(it->first);
    it->second.pool->reserved -= it->second.reserved;
    return driver.blocks.erase(it);
}

std::shared_ptr<Physical> take_physical(Driver& driver, const MemoryPool& pool, std::uint64_t reserved) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = pool.handle_types;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, pool.device};
    if (auto memory = Physical::create(driver.pool(pool.device), reserved, properties)) return memory;
    // Before it fails, the driver takes back what pools keep for nobody.
    driver.memory_pools.for_each([&](CUmemoryPool, const MemoryPool& other) {
        if (other.device == pool.device) trim(driver, other, 0);
    });
    return Physical::create(driver.pool(pool.device), reserved, properties);
}

CUresult grant(Driver& driver, const MemoryPool& pool, std::uint64_t begin, std::uint64_t reserved) {
    for (const auto& [device, flags] : pool.access) {
        const auto status = driver.space.set_access(begin, reserved, std::uint32_t{1} << device, flags);
        if (status != CUDA_SUCCESS) return status;
    }
    return CUDA_SUCCESS;
}

/// A call about a pool.
template <class Body>
CUresult call_with_pool(Entry entry, CUmemoryPool handle, Body&& body) noexcept {
    return call(entry, [&](Call& c) -> CUresult {
        const auto pool = c.driver.memory_pools.find(handle);
        return pool ? body(c, *pool) : CUDA_ERROR_INVALID_VALUE;
    });
}

CUresult set_attribute(MemoryPool& pool, CUmemPool_attribute attribute, const void* value) {
    if (is_switch(attribute)) {
        pool.reuse[attribute] = *static_cast<const int*>(value);
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

CUresult allocate_from(Driver& driver, const std::shared_ptr<MemoryPool>& pool, const Context& context,
                       std::uint64_t bytes, CUdeviceptr& address) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    const auto reserved = round_up(bytes, k_page);
    if (const auto kept = find_kept(driver, *pool, reserved); kept != driver.blocks.end()) {
        kept->second.bytes = bytes;
        kept->second.context = context.owner;
        kept->second.state = PoolBlock::State::live;
        count_used(*pool, kept->second.reserved);
        address = kept->first;
        return CUDA_SUCCESS;
    }
    if (reserved > pool->most_bytes || pool->reserved > pool->most_bytes - reserved)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const auto memory = take_physical(driver, *pool, reserved);
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    std::uint64_t begin = 0;
    auto status = driver.space.place(memory, Origin::pool, pool->device, begin);
    if (status != CUDA_SUCCESS) return status;
    if (status = grant(driver, *pool, begin, reserved); status != CUDA_SUCCESS) {
        driver.space.remove(begin);
        return status;
    }
    driver.blocks[begin] = {pool, bytes, reserved, context.owner, PoolBlock::State::live};
    pool->reserved += reserved;
    pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
    count_used(*pool, reserved);
    address = begin;
    return CUDA_SUCCESS;
}

void free_block(Driver& driver, CUdeviceptr address) {
    const auto found = driver.blocks.find(address);
    if (found == driver.blocks.end() || found->second.state == PoolBlock::State::kept) return;
    auto& pool = *found->second.pool;
    pool.used -= found->second.reserved;
    found->second.state = PoolBlock::State::kept;
    const bool is_destroyed = !driver.memory_pools.find(pool.handle);
    if (is_destroyed || pool.reserved > pool.threshold) remove_block(driver, found);
}

void trim(Driver& driver, const MemoryPool& pool, std::uint64_t bytes) {
    for (auto it = driver.blocks.begin(); it != driver.blocks.end() && pool.reserved > bytes;) {
        const bool goes = it->second.pool.get() == &pool && it->second.state == PoolBlock::State::kept;
        it = goes ? remove_block(driver, it) : std::next(it);
    }
}

void free_pool_memory_of(Driver& driver, const Context& context) {
    for (auto it = driver.blocks.begin(); it != driver.blocks.end();) {
        if (it->second.context != &context) {
            ++it;
            continue;
        }
        if (it->second.state != PoolBlock::State::kept) it->second.pool->used -= it->second.reserved;
        it = remove_block(driver, it);
    }
}

} // namespace gpu_sleep::sim

using namespace gpu_sleep::sim;

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    return call_with_device(Entry::cuDeviceGetDefaultMemPool, device, [&](Call& c) {
        if (!pool) return CUDA_ERROR_INVALID_VALUE;
        *pool = c.driver.default_pools[static_cast<std::size_t>(device)]->handle;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
    return call_with_device(Entry::cuDeviceGetMemPool, device, [&](Call& c) {
        if (!pool) return CUDA_ERROR_INVALID_VALUE;
        *pool = c.driver.current_pools[static_cast<std::size_t>(device)]->handle;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
    return call_with_device(Entry::cuDeviceSetMemPool, device, [&](Call& c) {
        const auto pool = c.driver.memory_pools.find(handle);
        if (!pool || pool->device != device) return CUDA_ERROR_INVALID_VALUE;
        c.driver.current_pools[static_cast<std::size_t>(device)] = pool;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* properties) {
    return call(Entry::cuMemPoolCreate, [&](Call& c) {
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
    });
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle) {
    return call(Entry::cuMemPoolDestroy, [&](Call& c) {
        const auto pool = c.driver.memory_pools.find(handle);
        if (!pool) return CUDA_ERROR_INVALID_VALUE;
        const auto& default_pool = c.driver.default_pools[static_cast<std::size_t>(pool->device)];
        if (pool == default_pool) return CUDA_ERROR_INVALID_VALUE;
        // What is still allocated goes when it is freed.
        trim(c.driver, *pool, 0);
        c.driver.memory_pools.remove(handle);
        auto& current = c.driver.current_pools[static_cast<std::size_t>(pool->device)];
        if (current == pool) current = default_pool;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    return call_with_pool(Entry::cuMemPoolSetAttribute, handle, [&](Call&, MemoryPool& pool) {
        return value ? set_attribute(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
    });
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    return call_with_pool(Entry::cuMemPoolGetAttribute, handle, [&](Call&, const MemoryPool& pool) {
        return value ? get_attribute(pool, attribute, value) : CUDA_ERROR_INVALID_VALUE;
    });
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, std::size_t bytes) {
    return call_with_pool(Entry::cuMemPoolTrimTo, handle, [&](Call& c, const MemoryPool& pool) {
        trim(c.driver, pool, bytes);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* descriptions,
                                    std::size_t count) {
    return call_with_pool(Entry::cuMemPoolSetAccess, handle, [&](Call& c, MemoryPool& pool) {
        if (!descriptions && count > 0) return CUDA_ERROR_INVALID_VALUE;
        for (std::size_t i = 0; i < count; ++i) {
            const auto& location = descriptions[i].location;
            const bool takes_from_owner =
                location.id == pool.device && descriptions[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || takes_from_owner)
                return CUDA_ERROR_INVALID_VALUE;
            if (!c.driver.has_device(location.id)) return CUDA_ERROR_INVALID_DEVICE;
        }
        for (std::size_t i = 0; i < count; ++i)
            pool.access[descriptions[i].location.id] = descriptions[i].flags;
        for (const auto& [begin, block] : c.driver.blocks) {
            if (block.pool.get() != &pool) continue;
            if (const auto status = grant(c.driver, pool, begin, block.reserved); status != CUDA_SUCCESS)
                return status;
        }
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
    return call_with_pool(Entry::cuMemPoolGetAccess, handle, [&](Call& c, const MemoryPool& pool) {
        if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
            !c.driver.has_device(location->id))
            return CUDA_ERROR_INVALID_VALUE;
        const auto granted = pool.access.find(location->id);
        if (granted != pool.access.end())
            *flags = granted->second;
        else
            *flags = location->id == pool.device ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                 : CU_MEM_ACCESS_FLAGS_PROT_NONE;
        return CUDA_SUCCESS;
    });
}
