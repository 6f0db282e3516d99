// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Stream-ordered memory on ranges: blocks that were freed in a stream's order are given out again in it, or
// in any other once the stream has come so far.

#include "caught/state.hpp"
#include "driver/context.hpp"

#include <algorithm>
#include <map>
#include <mutex>

namespace gpu_sleep::agent::caught {
namespace {

/// A stream, and its context: every context has default streams of the same handles, and an event only works
/// in its own.
struct StreamKey {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    friend bool operator==(const StreamKey&, const StreamKey&) = default;
};

/// A block that was freed, and when its last user is done with it.
struct Spare {
    CUdeviceptr address = 0;
    StreamKey freed_in;
    bool in_order = false;  ///< that stream may have it at once
    CUevent done = nullptr; ///< of the stream's context
};

struct Pool {
    int device = 0;
    bool is_caught = true; ///< made of the device's own memory, and never shared
    Bytes threshold = 0;   ///< what it may keep unused across a synchronisation
    driver::DeviceMask access = 0;
    std::map<Bytes, std::vector<Spare>> spares; ///< by their rounded size
    Bytes spare_bytes = 0;
    Bytes used = 0;
    Bytes used_high = 0;
    Bytes reserved_high = 0;

    [[nodiscard]] Bytes reserved() const noexcept { return used + spare_bytes; }
};

/// Its mutex comes before the memory's. Nobody waits for work under it.
struct Pools {
    std::mutex mutex; ///< guards all below
    std::map<CUmemoryPool, Pool> pools;
    std::vector<Spare> leaving;                       ///< blocks of no pool: given back once they are done
    std::map<CUcontext, std::vector<CUevent>> events; ///< to be used again in their context
    std::atomic<bool> has_excess{false}; ///< some pool keeps more than its threshold, or a block leaves
    std::atomic<Clock::time_point> next_trim{Clock::time_point{}};
    static Pools& instance() {
        static auto* const all = new Pools;
        return *all;
    }
};

/// Sizes between two powers of two fall into four classes, so that at most a fifth is wasted and blocks fit
/// again.
Bytes rounded(Bytes bytes) {
    constexpr Bytes k_least = 512;
    if (bytes <= k_least) return k_least;
    if (bytes > 2 * k_mib) return round_up(bytes, 2 * k_mib);
    Bytes power = k_least;
    while (power * 2 < bytes) power *= 2;
    return round_up(bytes, power / 4);
}

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
    pool.used -= std::min(pool.used, rounded(allocation.bytes));
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

/// An event of the context, which exists; null if none can be had.
CUevent take_event(Pools& all, const Agent::Memory& memory, CUcontext context) {
    if (auto& cached = all.events[context]; !cached.empty()) {
        auto* const event = cached.back();
        cached.pop_back();
        return event;
    }
    const auto create = [&]() -> CUevent {
        CUevent event = nullptr;
        return memory.api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS ? event : nullptr;
    };
    CUcontext current = nullptr;
    if (memory.api.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context) return create();
    const driver::CurrentContext entered(memory.api, context);
    return entered.status() == CUDA_SUCCESS ? create() : nullptr;
}

void give_event(Pools& all, const Spare& spare) {
    all.events[spare.freed_in.context].push_back(spare.done);
}

/// In part asleep a checked gate lets allocations pass: they must not be given what sleeps.
bool sleeps(const Agent::Memory& memory, CUdeviceptr address) {
    if (gate::Gate::is_open()) return false;
    const std::lock_guard lock(memory.mutex);
    const auto* backing = memory.ledger.find(address);
    return backing && backing->is_asleep();
}

/// Takes a spare of the size that the stream may use now. In a capture of any stream no event is asked.
std::optional<CUdeviceptr> reuse(Pools& all, const Agent::Memory& memory, Pool& pool, Bytes size,
                                 const StreamKey& key) {
    const auto found = pool.spares.find(size);
    if (found == pool.spares.end()) return std::nullopt;
    auto& spares = found->second;
    // The youngest first: its contents are likeliest to be cached, and it is likeliest to be of this stream.
    for (auto spare = spares.rbegin(); spare != spares.rend(); ++spare) {
        const bool is_usable = (spare->in_order && spare->freed_in == key) ||
                               (captures_open() == 0 && memory.api.cuEventQuery(spare->done) == CUDA_SUCCESS);
        if (!is_usable || sleeps(memory, spare->address)) continue;
        const auto address = spare->address;
        give_event(all, *spare);
        spares.erase(std::next(spare).base());
        pool.spare_bytes -= size;
        return address;
    }
    return std::nullopt;
}

/// Frees the spare if nobody uses it any more. The thread's capture mode is relaxed.
bool free_if_done(Pools& all, const Agent::Memory& memory, const Spare& spare) {
    if (memory.api.cuEventQuery(spare.done) != CUDA_SUCCESS) return false;
    give_range(memory, spare.address);
    give_event(all, spare);
    return true;
}

/// Frees spares that nobody uses any more until the pool keeps no more than `keep`.
void trim_pool(Pools& all, const Agent::Memory& memory, Pool& pool, Bytes keep) {
    const driver::RelaxedCaptureMode relaxed(memory.api);
    for (auto& [size, spares] : pool.spares) {
        for (std::size_t i = spares.size(); i-- > 0 && pool.spare_bytes > keep;) {
            if (!free_if_done(all, memory, spares[i])) continue;
            pool.spare_bytes -= size;
            spares.erase(spares.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }
}

/// Frees the blocks of no pool that nobody uses any more.
void trim_leaving(Pools& all, const Agent::Memory& memory) {
    const driver::RelaxedCaptureMode relaxed(memory.api);
    std::erase_if(all.leaving, [&](const Spare& spare) { return free_if_done(all, memory, spare); });
    if (!all.leaving.empty()) all.has_excess = true;
}

void trim_all(Pools& all, const Agent::Memory& memory) {
    for (auto& [handle, pool] : all.pools) trim_pool(all, memory, pool, 0);
    trim_leaving(all, memory);
}

void grant(const Agent::Memory& memory, const Pool& pool, CUdeviceptr address) {
    for (int device = 0; device < driver::k_max_devices; ++device) {
        if (device == pool.device || !(pool.access >> device & 1)) continue;
        const std::lock_guard lock(memory.mutex);
        static_cast<void>(memory.heap.allow_access(address, device));
    }
}

Answer allocate_from(const Agent::Memory& memory, CUdeviceptr* address, std::size_t bytes,
                     CUmemoryPool handle, const StreamKey& key) {
    const driver::RelaxedCaptureMode relaxed(memory.api);
    auto& all = Pools::instance();
    const std::lock_guard lock(all.mutex);
    auto* const found = find_pool(all, memory, handle);
    if (!found || !found->is_caught) return std::nullopt;
    auto& pool = *found;
    const auto size = rounded(bytes);
    auto block = reuse(all, memory, pool, size, key);
    if (!block) {
        const auto tag = tag_for(size);
        if (!tag) return std::nullopt;
        const auto try_once = [&] {
            const std::lock_guard memory_lock(memory.mutex);
            return memory.heap.allocate(pool.device, memory.ledger.tag_id(*tag), size);
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

/// Keeps a freed block until the stream has come so far, as a spare of its pool if it has one. False when no
/// event can tell: then the block is the caller's still.
bool keep_until_done(const Agent::Memory& memory, const Known& allocation, const StreamKey& key) {
    auto& all = Pools::instance();
    const std::lock_guard lock(all.mutex);
    auto* const pool = leave_pool(all, allocation);
    auto* const event = take_event(all, memory, key.context);
    if (!event) return false;
    const Spare spare{allocation.address, key, key.stream != CU_STREAM_PER_THREAD, event};
    if (memory.api.cuEventRecord(event, key.stream) != CUDA_SUCCESS) {
        give_event(all, spare);
        return false;
    }
    if (!pool) {
        // Plain memory, or of a pool that is gone: it is no block that anybody may have again.
        all.leaving.push_back(spare);
        all.has_excess = true;
        return true;
    }
    const auto size = rounded(allocation.bytes);
    pool->spare_bytes += size;
    pool->spares[size].push_back(spare);
    if (pool->spare_bytes > pool->threshold) all.has_excess = true;
    return true;
}

} // namespace

CUcontext context_of(const Agent::Memory& memory, CUstream stream) {
    CUcontext context = nullptr;
    const bool has_handle = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    if (has_handle && memory.api.cuStreamGetCtx &&
        memory.api.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS)
        return context;
    return memory.api.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

Answer allocate_async(CUdeviceptr* address, std::size_t bytes, std::optional<CUmemoryPool> pool,
                      CUstream stream, bool per_thread) noexcept {
    return answered([&]() -> Answer {
        const auto with = memory();
        if (!with || !address || bytes == 0) return std::nullopt;
        const auto key = key_of(*with, stream, per_thread);
        // In a capture it becomes a node of the graph, whose memory is the driver's.
        if (!key.context || is_capturing(*with, key.stream)) return std::nullopt;
        const auto device = device_of(*with, key.context);
        if (!device) return std::nullopt;
        const auto handle = pool ? *pool : pool_of_device(*with, *device);
        return handle ? allocate_from(*with, address, bytes, handle, key) : std::nullopt;
    });
}

Answer free_async(CUdeviceptr address, CUstream stream, bool per_thread) noexcept {
    return answered([&]() -> Answer {
        const auto allocation = Allocations::instance().take(address);
        if (!allocation) return std::nullopt;
        if (allocation->is_virtual) {
            Allocations::instance().put_back(*allocation);
            return std::nullopt;
        }
        const auto with = memory();
        if (!with) return CUDA_SUCCESS;
        const auto key = key_of(*with, stream, per_thread);
        if (meets_capture(*with, key.stream)) {
            freed_from_pool(*allocation);
            free_later(*allocation);
        } else if (!keep_until_done(*with, *allocation, key)) {
            // Without an event nobody can say when the block is free: wait, and give it back.
            free_later(*allocation);
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

Taken take_pools_of(const Agent::Memory& memory, CUcontext context) {
    struct Taking {
        CUmemoryPool pool; ///< null: of no pool
        Bytes size;
        Spare spare;
    };
    auto& all = Pools::instance();
    std::vector<CUevent> events;
    std::vector<Taking> spares;
    {
        const std::lock_guard lock(all.mutex);
        const auto of_context = [=](const Spare& spare) { return spare.freed_in.context == context; };
        for (auto& [handle, pool] : all.pools) {
            for (auto& [size, blocks] : pool.spares) {
                for (const auto& spare : blocks)
                    if (of_context(spare)) spares.push_back({handle, size, spare});
                pool.spare_bytes -= size * std::erase_if(blocks, of_context);
            }
        }
        for (const auto& spare : all.leaving)
            if (of_context(spare)) spares.push_back({nullptr, 0, spare});
        std::erase_if(all.leaving, of_context);
        if (auto cached = all.events.extract(context)) events = std::move(cached.mapped());
    }
    // With the context its work is over, and its events are gone.
    auto gone = [=] {
        for (const auto& taken : spares) give_range(memory, taken.spare.address);
    };
    auto stays = [=, &all] {
        const std::lock_guard lock(all.mutex);
        auto& cached = all.events[context];
        cached.insert(cached.end(), events.begin(), events.end());
        for (const auto& taken : spares) {
            const auto found = taken.pool ? all.pools.find(taken.pool) : all.pools.end();
            if (found == all.pools.end()) {
                all.leaving.push_back(taken.spare);
                continue;
            }
            found->second.spares[taken.size].push_back(taken.spare);
            found->second.spare_bytes += taken.size;
        }
        all.has_excess = true;
    };
    return {std::move(gone), std::move(stays)};
}

void synchronized() noexcept {
    auto& all = Pools::instance();
    if (!all.has_excess.load(std::memory_order_relaxed) || captures_open() != 0) return;
    // Programs that synchronise after every step would make and release the same ranges again and again: 54
    // us for each 2 MiB (catch_bench, "in stream order").
    constexpr Milliseconds k_between{10};
    const auto now = Clock::now();
    if (now < all.next_trim.load(std::memory_order_relaxed)) return;
    all.next_trim.store(now + k_between, std::memory_order_relaxed);
    noted([&] {
        const auto with = memory();
        if (!with) return;
        const std::lock_guard lock(all.mutex);
        all.has_excess = false;
        for (auto& [handle, pool] : all.pools) {
            trim_pool(all, *with, pool, pool.threshold);
            if (pool.spare_bytes > pool.threshold) all.has_excess = true;
        }
        trim_leaving(all, *with);
    });
}

void trim() noexcept {
    noted([&] {
        const auto with = memory();
        if (!with) return;
        auto& all = Pools::instance();
        const std::lock_guard lock(all.mutex);
        trim_all(all, *with);
    });
}

void forget_order_of(CUstream stream) {
    auto& all = Pools::instance();
    const std::lock_guard lock(all.mutex);
    for (auto& [handle, pool] : all.pools)
        for (auto& [size, spares] : pool.spares)
            for (auto& spare : spares) spare.in_order &= spare.freed_in.stream != stream;
}

void pool_created(CUmemoryPool handle, const CUmemPoolProps& properties) noexcept {
    noted([&] {
        auto& all = Pools::instance();
        const std::lock_guard lock(all.mutex);
        Pool pool;
        pool.device = properties.location.id;
        pool.is_caught = properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
                         properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                         properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE && properties.maxSize == 0;
        all.pools.insert_or_assign(handle, std::move(pool));
    });
}

CUresult end_pool(CUmemoryPool handle, const std::function<CUresult()>& destroy) noexcept {
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
        trim_pool(all, *with, pool, keep > pool.used ? keep - pool.used : 0);
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
