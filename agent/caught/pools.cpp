// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Stream-ordered memory on ranges: cuMemAllocAsync, cuMemFreeAsync and what the program does with pools. What
// becomes of freed blocks is in spares.hpp.

#include "caught/spares.hpp"
#include "driver/context.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>

namespace gpu_sleep::agent::caught {
namespace {

CUmemoryPool pool_of_device(const Agent::Memory& memory, int device) {
    CUmemoryPool pool = nullptr;
    if (!memory.api.cuDeviceGetMemPool || memory.api.cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS)
        return nullptr;
    return pool;
}

/// The device that the driver made the pool for, or took it as its current one.
std::optional<int> device_of_pool(const Agent::Memory& memory, CUmemoryPool handle) {
    int devices = 0;
    if (!handle || memory.api.cuDeviceGetCount(&devices) != CUDA_SUCCESS) return std::nullopt;
    for (int device = 0; device < devices; ++device) {
        CUmemoryPool pool = nullptr;
        if (pool_of_device(memory, device) == handle) return device;
        if (memory.api.cuDeviceGetDefaultMemPool &&
            memory.api.cuDeviceGetDefaultMemPool(&pool, device) == CUDA_SUCCESS && pool == handle)
            return device;
    }
    return std::nullopt;
}

/// A pool whose creation was seen, or one of a device. Null for any other: nobody knows what its memory is.
Pool* find_pool(Pools& all, const Agent::Memory& memory, CUmemoryPool handle) {
    if (const auto found = all.pools.find(handle); found != all.pools.end()) return &found->second;
    const auto device = device_of_pool(memory, handle);
    if (!device) return nullptr;
    auto& pool = all.pools[handle];
    pool.device = *device;
    return &pool;
}

/// Takes an allocation out of its pool's count. Returns the pool; null when there is none, or no longer.
Pool* leave_pool(Pools& all, const Known& allocation) {
    if (!allocation.pool || allocation.pool_is_gone) return nullptr;
    const auto found = all.pools.find(allocation.pool);
    if (found == all.pools.end()) return nullptr;
    auto& pool = found->second;
    pool.used -= std::min(pool.used, block_size(allocation.bytes));
    return &pool;
}

/// The stream with the handle that means the same to any call of this thread.
StreamKey key_of(const Agent::Memory& memory, CUstream stream, bool per_thread) {
    return {context_of(memory, stream), stream       ? stream
                                        : per_thread ? CU_STREAM_PER_THREAD
                                                     : CU_STREAM_LEGACY};
}

bool is_capturing(const Agent::Memory& memory, CUstream stream) {
    if (captures_open() == 0) return false;
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    return memory.api.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/// Whether an event recorded in the stream would be part of a capture, or break one.
bool meets_capture(const Agent::Memory& memory, CUstream stream) {
    if (captures_open() == 0) return false;
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    return memory.api.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/// The device of a context, which exists.
std::optional<int> device_of(const Agent::Memory& memory, CUcontext context) {
    CUcontext current = nullptr;
    if (memory.api.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context)
        return current_device(memory);
    const driver::CurrentContext entered(memory.api, context);
    return entered.status() == CUDA_SUCCESS ? current_device(memory) : std::nullopt;
}

void grant(const Agent::Memory& memory, const Pool& pool, CUdeviceptr address) {
    for (int device = 0; device < driver::k_max_devices; ++device) {
        if (device == pool.device || !(pool.access >> device & 1)) continue;
        const std::lock_guard lock(memory.mutex);
        static_cast<void>(memory.heap.allow_access(address, device));
    }
}

ledger::TagId tag_id(const Agent::Memory& memory, std::string_view name) {
    const std::lock_guard lock(memory.mutex);
    return memory.ledger.tag_id(name);
}

Answer allocate_from(const Agent::Memory& memory, CUdeviceptr* address, std::size_t bytes,
                     CUmemoryPool handle, const StreamKey& key, Left& left) {
    const TagChoice choose_tag; // before any mutex is taken: it may need the loader's lock
    const driver::RelaxedCaptureMode relaxed(memory.api);
    auto& all = Pools::instance();
    const std::lock_guard lock(all.mutex);
    auto* const found = find_pool(all, memory, handle);
    if (!found || !found->is_caught) return std::nullopt;
    auto& pool = *found;
    const auto size = block_size(bytes);
    // A spare too is taken only where the allocation would have been caught, and as what it would have been.
    const auto name = choose_tag(size);
    if (!name) {
        left = {TagChoice::why_not(size), owner_of_memory_in(key.context), pool.device, true};
        return std::nullopt;
    }
    const auto tag = tag_id(memory, *name);
    auto block = take_spare(memory, pool, size, tag, key);
    if (!block) {
        const auto try_once = [&] {
            const std::lock_guard memory_lock(memory.mutex);
            return memory.heap.allocate(pool.device, tag, size);
        };
        auto range = try_once();
        if (!range && range.error().code == ErrorCode::out_of_device_memory) {
            trim_all(all, memory);
            range = try_once();
        }
        if (!range) {
            if (range.error().code == ErrorCode::out_of_device_memory) return CUDA_ERROR_OUT_OF_MEMORY;
            return std::nullopt;
        }
        block = *range;
        if (pool.access != 0) grant(memory, pool, *block);
    }
    pool.used += size;
    pool.used_high = std::max(pool.used_high, pool.used);
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved());
    Allocations::instance().add({*block, bytes, pool.device, key.context, handle, 0, false});
    *address = *block;
    return CUDA_SUCCESS;
}

/// Keeps a freed block, out of its pool's count. False when it is the caller's still.
bool free_in_order(const Agent::Memory& memory, const Known& allocation, const StreamKey& key) {
    auto& all = Pools::instance();
    const std::lock_guard lock(all.mutex);
    return keep_until_done(all, memory, leave_pool(all, allocation), allocation, key);
}

} // namespace

Answer allocate_async(CUdeviceptr* address, std::size_t bytes, std::optional<CUmemoryPool> pool,
                      CUstream stream, bool per_thread, Left& left) noexcept {
    return answered([&]() -> Answer {
        start_again();
        const auto with = memory();
        if (!with || !address || bytes == 0) return std::nullopt;
        const auto key = key_of(*with, stream, per_thread);
        // In a capture it becomes a node of the graph, whose memory is the driver's.
        if (!key.context || is_capturing(*with, key.stream)) return std::nullopt;
        const auto device = device_of(*with, key.context);
        if (!device) return std::nullopt;
        const auto handle = pool ? *pool : pool_of_device(*with, *device);
        if (!handle) return std::nullopt;
        const auto answer = allocate_from(*with, address, bytes, handle, key, left);
        if (answer != CUDA_ERROR_OUT_OF_MEMORY || !free_amid_captures(*with)) return answer;
        return allocate_from(*with, address, bytes, handle, key, left);
    });
}

Answer free_async(CUdeviceptr address, CUstream stream, bool per_thread) noexcept {
    return answered([&]() -> Answer {
        Leaving allocation(Allocations::instance().extract(address));
        if (!allocation) return std::nullopt;
        if (allocation->is_virtual) {
            allocation.stay();
            return std::nullopt;
        }
        const auto with = memory();
        if (!with) {
            allocation.done();
            return CUDA_SUCCESS;
        }
        const auto key = key_of(*with, stream, per_thread);
        if (!key.context) { // the driver says what is wrong
            allocation.stay();
            return std::nullopt;
        }
        if (meets_capture(*with, key.stream)) {
            freed_from_pool(*allocation);
            return CUDA_SUCCESS; // when the capture has ended
        }
        noted([&] {
            if (free_in_order(*with, *allocation, key)) allocation.done();
        });
        if (allocation) {
            // Without an event nobody can say when the block is free: wait, and give it back.
            allocation.wait();
            free_waiting();
        }
        return CUDA_SUCCESS;
    });
}

void freed_from_pool(const Known& allocation) {
    auto& all = Pools::instance();
    const std::lock_guard lock(all.mutex);
    leave_pool(all, allocation);
}

namespace {

/// Whether the memory is meant for something, such as decompression. An older cuda.h has bytes without a name
/// there.
template <class Properties>
bool has_usage(const Properties& properties) noexcept {
    if constexpr (requires { properties.usage; })
        return properties.usage != 0;
    else
        return properties.reserved[0] != 0 || properties.reserved[1] != 0;
}

} // namespace

void pool_created(CUmemoryPool handle, const CUmemPoolProps& properties) noexcept {
    noted([&] {
        auto& all = Pools::instance();
        const std::lock_guard lock(all.mutex);
        Pool pool;
        pool.device = properties.location.id;
        pool.is_caught = properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
                         properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                         properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE && properties.maxSize == 0 &&
                         !has_usage(properties);
        all.pools.insert_or_assign(handle, std::move(pool));
    });
}

CUresult end_pool(CUmemoryPool handle, const std::function<CUresult()>& destroy) noexcept {
    const std::shared_lock contexts(contexts_mutex()); // none ends while its spares are out of the books
    auto& all = Pools::instance();
    std::map<CUmemoryPool, Pool>::node_type taken;
    const auto mark_allocations = [&](bool is_gone) {
        Allocations::instance().change([&](Known& known) {
            if (known.pool == handle && known.pool_is_gone != is_gone) known.pool_is_gone = is_gone;
        });
    };
    noted([&] {
        const std::lock_guard lock(all.mutex);
        taken = all.pools.extract(handle);
        if (taken) mark_allocations(true);
    });
    const auto status = destroy();
    if (!taken) return status;
    noted([&] {
        const auto with = memory();
        const std::lock_guard lock(all.mutex);
        if (status != CUDA_SUCCESS) {
            all.pools.insert(std::move(taken));
            mark_allocations(false);
            return;
        }
        for (const auto& [size, spares] : taken.mapped().spares)
            all.leaving.insert(all.leaving.end(), spares.begin(), spares.end());
        if (with) trim_leaving(all, *with);
    });
    return status;
}

void pool_trimmed(CUmemoryPool handle, std::size_t keep) noexcept {
    noted([&] {
        const auto with = memory();
        if (!with) return;
        auto& all = Pools::instance();
        const std::lock_guard lock(all.mutex);
        const auto found = all.pools.find(handle);
        if (found == all.pools.end()) return;
        auto& pool = found->second;
        trim_pool(*with, pool, keep > pool.used ? keep - pool.used : 0);
    });
}

void pool_threshold(CUmemoryPool handle, cuuint64_t bytes) noexcept {
    noted([&] {
        auto& all = Pools::instance();
        const std::lock_guard lock(all.mutex);
        const auto with = memory();
        auto* const pool = with ? find_pool(all, *with, handle) : nullptr;
        if (pool) pool->threshold = bytes;
    });
}

void pool_access(CUmemoryPool handle, const CUmemAccessDesc* grants, std::size_t count) noexcept {
    noted([&] {
        const auto with = memory();
        if (!with) return;
        auto& all = Pools::instance();
        const std::lock_guard lock(all.mutex);
        auto* const found = find_pool(all, *with, handle);
        if (!found) return;
        auto& pool = *found;
        for (std::size_t i = 0; i < count; ++i) {
            const auto& granted = grants[i];
            if (granted.location.type != CU_MEM_LOCATION_TYPE_DEVICE || granted.location.id < 0 ||
                granted.location.id >= driver::k_max_devices)
                continue;
            const auto bit = driver::DeviceMask{1} << granted.location.id;
            pool.access =
                granted.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? pool.access | bit : pool.access & ~bit;
        }
        const auto theirs =
            Allocations::instance().all([&](const Known& a) { return a.pool == handle && !a.pool_is_gone; });
        for (const auto& allocation : theirs) grant(*with, pool, allocation.address);
        for (const auto& [size, spares] : pool.spares)
            for (const auto& spare : spares) grant(*with, pool, spare.address);
    });
}

void add_pool_figures(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) noexcept {
    noted([&] {
        auto& all = Pools::instance();
        const std::lock_guard lock(all.mutex);
        const auto found = all.pools.find(handle);
        if (found == all.pools.end() || !value) return;
        const auto& pool = found->second;
        auto& figure = *static_cast<cuuint64_t*>(value);
        switch (attribute) {
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: figure += pool.reserved(); break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: figure += pool.reserved_high; break;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: figure += pool.used; break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: figure += pool.used_high; break;
        default: break;
        }
    });
}

void pool_figures_reset(CUmemoryPool handle, CUmemPool_attribute attribute) noexcept {
    noted([&] {
        auto& all = Pools::instance();
        const std::lock_guard lock(all.mutex);
        const auto found = all.pools.find(handle);
        if (found == all.pools.end()) return;
        auto& pool = found->second;
        if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) pool.reserved_high = pool.reserved();
        if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool.used_high = pool.used;
    });
}

} // namespace gpu_sleep::agent::caught
