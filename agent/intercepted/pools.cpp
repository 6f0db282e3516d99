// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Stream-ordered memory on ranges: cuMemAllocAsync, cuMemFreeAsync, and what the program does with pools.
// What becomes of freed blocks is in freeing.cpp, what pools say of themselves in pool_table.cpp.

#include "intercepted/memory.hpp"

#include "intercepted/contexts.hpp"
#include "intercepted/freeing.hpp"
#include "intercepted/pool_table.hpp"
#include "intercepted/rules.hpp"

namespace gpu_sleep::agent::intercepted {
namespace {

CUmemoryPool pool_of_device(ProgramMemory& memory, int device) {
    CUmemoryPool pool = nullptr;
    if (!memory.api().cuDeviceGetMemPool || memory.api().cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS)
        return nullptr;
    return pool;
}

/// The device that the driver made the pool for, or took it as its current one.
std::optional<int> device_of_pool(ProgramMemory& memory, CUmemoryPool handle) {
    if (!handle) return std::nullopt;
    const auto devices = driver::device_count(memory.api());
    for (int device = 0; devices && device < *devices; ++device) {
        CUmemoryPool pool = nullptr;
        if (pool_of_device(memory, device) == handle) return device;
        if (memory.api().cuDeviceGetDefaultMemPool &&
            memory.api().cuDeviceGetDefaultMemPool(&pool, device) == CUDA_SUCCESS && pool == handle)
            return device;
    }
    return std::nullopt;
}

/// A pool whose creation was seen, or one of a device. Null for any other: nobody knows what its memory is.
std::shared_ptr<Pool> find_pool(Pools& all, ProgramMemory& memory, CUmemoryPool handle)
    GPU_SLEEP_REQUIRES(all.mutex) {
    if (const auto found = all.pools.find(handle); found != all.pools.end()) return found->second;
    const auto device = device_of_pool(memory, handle);
    if (!device) return nullptr;
    auto pool = std::make_shared<Pool>(Pool{.handle = handle, .device = *device, .is_mixed = true});
    pool->is_mixed = figure_of_driver(memory, *pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) > 0;
    all.pools.emplace(handle, pool);
    return pool;
}

/// Calls `use` with a pool that find_pool() finds, under the mutex of all.
template <class Use>
void with_pool(CUmemoryPool handle, const Use& use) noexcept {
    with_pools([&](Pools& all, ProgramMemory& memory) GPU_SLEEP_UNCHECKED { // as there
        if (const auto pool = find_pool(all, memory, handle)) use(all, memory, *pool);
    });
}

/// Whether the driver may have what is allocated now. Of a pool that can be shared it has all or nothing: who
/// imports that has one pool, too.
bool may_leave_to_driver(Pool& pool) noexcept {
    if (pool.number == 0) return true;
    pool.is_intercepted = pool.is_exported || pool.reserved != 0;
    return !pool.is_intercepted;
}

/// `was_short`: memory was, and pools gave back what they could.
Answer allocate_from(ProgramMemory& memory, CUdeviceptr* address, std::size_t bytes, CUmemoryPool handle,
                     const StreamKey& key, bool was_short, ResidualRecord& residual) {
    const TagChoice choose_tag; // before any mutex is taken: it may need the loader's lock
    const driver::RelaxedCaptureMode relaxed(memory.api());
    auto& all = books().pools;
    const MutexLock lock(all.mutex);
    const auto pool = find_pool(all, memory, handle);
    if (pool && pool->owner) return CUDA_ERROR_INVALID_VALUE;
    if (!pool || !pool->is_intercepted) return std::nullopt;
    // A spare too is taken only where the allocation would have been intercepted, and as what it would have
    // been.
    auto name = choose_tag(bytes);
    if (!name && !may_leave_to_driver(*pool)) name = model::k_default_tag;
    if (!name) {
        residual = {.kind = "pool",
                    .reason = TagChoice::why_not(bytes),
                    .device = pool->device,
                    .context = books().contexts.owner_of_memory_in(key.context),
                    .pool = handle};
        return std::nullopt;
    }
    // First: a block that is taken and cannot be given out would have lost its last use.
    auto record = make_entry<Allocations::Taken>(
        0, Allocation{.bytes = bytes, .device = pool->device, .context = key.context, .pool = handle});
    if (pool->number != 0) record.mapped().handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    const BlockRequest request{round_up(bytes, k_block_step), memory.tag_id(*name), key};
    const auto would_be_too_much = [&] { // much more than it ever used
        constexpr Bytes k_leeway = 32 * k_mib;
        const auto most = std::max(pool->used_high, pool->used + request.bytes);
        return pool->reserved + request.bytes > most + most / 8 + k_leeway;
    };
    auto block = take_spare(all, memory, *pool, request, false);
    if (!block && (was_short || would_be_too_much())) block = take_spare(all, memory, *pool, request, true);
    if (!block) {
        if (would_be_too_much() && pool->unused_ranges > 0 && books().captures.count() == 0)
            give_back_idle(all, memory,
                           [&](const Range& range) { return range.pool == pool && would_be_too_much(); });
        const auto taken = take_new(all, memory, pool, request);
        if (was_short && is_short(taken)) memory.note_shortage(pool->device, bytes);
        if (!taken && (is_shortage(taken.error()) || !may_leave_to_driver(*pool)))
            return CUDA_ERROR_OUT_OF_MEMORY;
        pool->is_mixed |= !taken; // from here on
        if (!taken) return std::nullopt;
        let_reach(memory, pool->access, pool->device, *taken);
        block = *taken;
    }
    record.mapped().address = *block;
    books().allocations.add(std::move(record));
    pool->used += bytes;
    note_peaks(memory, *pool);
    *address = *block;
    return CUDA_SUCCESS;
}

/// Keeps a freed block, out of its pool's count, or plain memory, which nobody may have again, until the
/// stream is there. Nothing where no event can be had.
void free_in_order(ProgramMemory& memory, Due& due, const StreamKey& key) {
    auto& all = books().pools;
    const MutexLock lock(all.mutex);
    auto& allocation = due.allocations.begin()->second;
    const auto block = all.blocks.find(allocation.address);
    const bool is_block = block != all.blocks.end();
    if (is_block) block->second.range->pool->used -= allocation.bytes;
    const auto last_use = last_use_in(all, memory, key);
    if (!last_use) return;
    if (is_block) {
        make_spare(all, memory, block, *last_use);
        due.allocations.clear();
    } else {
        allocation.done = last_use->done;
        allocation.freed_in = key.context;
        due.free_later();
        all.has_excess = true;
    }
}

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

Answer allocate_async(CUdeviceptr* address, std::size_t bytes, std::optional<CUmemoryPool> pool,
                      CUstream stream, bool per_thread, ResidualRecord& residual) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        if (!address || bytes == 0) return std::nullopt;
        const auto key = key_of(stream, per_thread);
        // In a capture it becomes a node of the graph, whose memory is the driver's.
        if (!key.context || is_capturing(key.stream, false)) return std::nullopt;
        const auto device = device_of(memory, key.context);
        if (!device) return std::nullopt;
        const auto handle = pool ? *pool : pool_of_device(memory, *device);
        if (!handle) return std::nullopt;
        bool was_short = false;
        const auto try_once = [&] {
            return allocate_from(memory, address, bytes, handle, key, std::exchange(was_short, true),
                                 residual);
        };
        return try_for_memory(memory, try_once);
    });
}

Answer free_async(CUdeviceptr address, CUstream stream, bool per_thread) noexcept {
    return answered([&] {
        const auto free = [&](ProgramMemory& memory, Due& due, const Allocation& allocation) -> Answer {
            const auto key = key_of(stream, per_thread);
            const bool captures = key.context && is_capturing(key.stream, true);
            const auto freeing = freeing_of({true, key.context != nullptr, captures});
            if (freeing == Freeing::refused) { // the driver says what is wrong
                books().allocations.put_back(due.allocations);
                return std::nullopt;
            }
            if (freeing == Freeing::once_captures_end) { // an event would be a part of it, or break it
                books().pools.count_freed(address, allocation.bytes);
                return CUDA_SUCCESS;
            }
            ignoring_errors([&] { free_in_order(memory, due, key); });
            if (due.allocations.empty()) return CUDA_SUCCESS;
            // Without an event nobody can say when the block is free: wait, and give it back.
            due.free_later();
            free_waiting();
            return CUDA_SUCCESS;
        };
        return free_known(address, free);
    });
}

void pool_created(CUmemoryPool handle, const CUmemPoolProps& properties) noexcept {
    ignoring_errors([&] {
        const auto pool = std::make_shared<Pool>();
        pool->handle = handle;
        pool->device = properties.location.id;
        pool->is_mixed = !memory(); // until the agent runs the driver has what is allocated
        const bool can_be_shared = properties.handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        pool->is_intercepted =
            properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
            properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
            (properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE || (can_be_shared && !pool->is_mixed)) &&
            properties.maxSize == 0 && !has_usage(properties);
        auto& all = books().pools;
        const MutexLock lock(all.mutex);
        if (can_be_shared) pool->number = ++all.last_number;
        all.pools.insert_or_assign(handle, pool);
    });
}

CUresult end_pool(CUmemoryPool handle, const std::function<CUresult()>& destroy) noexcept {
    // Out of the books first, for another pool may get the handle at once; not under the mutex, for the
    // driver may take its time. No context ends while the pool's spares are in no book.
    const std::shared_lock stay(books().contexts.alive);
    auto& all = books().pools;
    decltype(all.pools)::node_type taken;
    {
        const MutexLock lock(all.mutex);
        taken = all.pools.extract(handle);
    }
    const auto status = destroy();
    if (!taken) return status;
    if (status != CUDA_SUCCESS) {
        const MutexLock lock(all.mutex);
        all.pools.insert(std::move(taken));
        return status;
    }
    with_pools([&](Pools& pools, ProgramMemory& memory) GPU_SLEEP_REQUIRES(pools.mutex) {
        const auto& pool = taken.mapped();
        pool->is_gone = true;
        pools.has_excess = true; // what is not done yet
        give_back_idle(pools, memory, [&](const Range& range) { return range.pool == pool; });
    });
    return status;
}

void note_mixed_pool(CUmemoryPool handle) noexcept {
    with_pool(handle, [](Pools&, ProgramMemory& memory, Pool& pool) {
        pool.is_mixed = true;
        note_peaks(memory, pool);
    });
}

void pool_trimmed(CUmemoryPool handle, std::size_t keep) noexcept {
    with_pool(handle, [&](Pools& all, ProgramMemory& memory, Pool& pool) GPU_SLEEP_REQUIRES(all.mutex) {
        give_back_idle(all, memory, [&](const Range& range) {
            return range.pool.get() == &pool && reserved_in_all(memory, pool) - range.bytes >= keep;
        });
    });
}

void pool_access(CUmemoryPool handle, const CUmemAccessDesc* grants, std::size_t count) noexcept {
    with_pool(handle, [&](Pools& all, ProgramMemory& memory, Pool& pool) GPU_SLEEP_REQUIRES(all.mutex) {
        for (const auto& [location, flags] : std::span(grants, count))
            if (is_device(location)) note_access(pool.access, location.id, flags);
        for (const auto& [address, range] : all.ranges)
            if (range.pool.get() == &pool) let_reach(memory, pool.access, pool.device, address);
        if (pool.owner) let_reach_imports(memory, pool);
    });
}

void pool_set(CUmemoryPool handle, CUmemPool_attribute attribute, const void* value) noexcept {
    give_back_due(); // of before
    with_pool(handle, [&](Pools& all, ProgramMemory& memory, Pool& pool) GPU_SLEEP_REQUIRES(all.mutex) {
        if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
            pool.threshold = *static_cast<const cuuint64_t*>(value);
            all.has_excess = true; // perhaps: the next synchronise looks
        } else if (attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC) {
            pool.reuses_unwaited = *static_cast<const int*>(value) != 0;
        } else {
            if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool.used_high = 0;
            if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) pool.reserved_high = 0;
            note_peaks(memory, pool);
        }
    });
}

void add_pool_figures(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) noexcept {
    if (!value) return;
    with_pool(handle, [&](Pools&, ProgramMemory& memory, Pool& pool) {
        if (pool.owner) {
            pool.used = 0;
            for (const auto& each : books().allocations.all(
                     [=](const Allocation& a) { return a.is_import && a.pool == handle; }))
                pool.used += each.bytes;
            pool.reserved = pool.used;
            note_peaks(memory, pool);
        }
        auto& figure = *static_cast<cuuint64_t*>(value);
        switch (attribute) {
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: figure += pool.reserved; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: figure = std::max(figure, pool.reserved_high); break;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: figure += pool.used; break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: figure = std::max(figure, pool.used_high); break;
        default: break;
        }
    });
}

} // namespace gpu_sleep::agent::intercepted
