// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Stream-ordered memory on ranges: blocks that were freed in a stream's order are given out again in it, or in any
// other once the stream has come so far.

#include "caught/state.hpp"

#include <algorithm>
#include <map>
#include <mutex>

namespace gpu_sleep::agent::caught {
namespace {

/// A block that was freed, and when its last user is done with it.
struct Spare {
    CUdeviceptr address = 0;
    CUstream stream = nullptr; ///< whose order it was freed in
    bool in_order = false;     ///< that stream may have it at once
    CUevent done = nullptr;
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

/// Its mutex comes before the memory's.
struct Pools {
    std::mutex mutex; ///< guards all below
    std::map<CUmemoryPool, Pool> pools;
    std::vector<CUevent> events; ///< to be used again
    std::atomic<bool> has_excess{false}; ///< some pool keeps more than its threshold
    std::atomic<Clock::time_point> next_trim{Clock::time_point{}};
    static Pools& instance() {
        static auto* const all = new Pools;
        return *all;
    }
};

/// Sizes between two powers of two fall into four classes, so that at most a fifth is wasted and blocks fit again.
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
    if (!memory.api.cuDeviceGetMemPool || memory.api.cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS) return nullptr;
    return pool;
}

Pool& pool_at(Pools& all, CUmemoryPool handle, int device) {
    const auto [place, is_new] = all.pools.try_emplace(handle);
    if (is_new) place->second.device = device;
    return place->second;
}

bool is_capturing(const Agent::Memory& memory, CUstream stream) {
    if (captures_open() == 0) return false;
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    return memory.api.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/// The stream as a key, and as the handle that means the same to any thread's driver call.
CUstream normal(CUstream stream, bool per_thread) {
    if (stream != nullptr) return stream;
    return per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

CUevent take_event(Pools& all, const Agent::Memory& memory) {
    if (!all.events.empty()) {
        auto* const event = all.events.back();
        all.events.pop_back();
        return event;
    }
    CUevent event = nullptr;
    return memory.api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS ? event : nullptr;
}

/// In part asleep a checked gate lets allocations pass: they must not be given what sleeps.
bool sleeps(const Agent::Memory& memory, CUdeviceptr address) {
    if (gate::Gate::is_open()) return false;
    const std::lock_guard lock(memory.mutex);
    const auto* backing = memory.ledger.find(address);
    return backing && backing->is_asleep();
}

/// Takes a spare of the size that the stream may use now.
std::optional<CUdeviceptr> reuse(Pools& all, const Agent::Memory& memory, Pool& pool, Bytes size, CUstream stream) {
    const auto found = pool.spares.find(size);
    if (found == pool.spares.end()) return std::nullopt;
    auto& spares = found->second;
    // The youngest first: its contents are likeliest to be cached, and it is likeliest to be of this stream.
    for (auto spare = spares.rbegin(); spare != spares.rend(); ++spare) {
        const bool is_usable = (spare->in_order && spare->stream == stream) ||
                               memory.api.cuEventQuery(spare->done) == CUDA_SUCCESS;
        if (!is_usable || sleeps(memory, spare->address)) continue;
        const auto address = spare->address;
        all.events.push_back(spare->done);
        spares.erase(std::next(spare).base());
        pool.spare_bytes -= size;
        return address;
    }
    return std::nullopt;
}

/// Frees spares that nobody uses any more until the pool keeps no more than `keep`.
void trim_pool(Pools& all, const Agent::Memory& memory, Pool& pool, Bytes keep) {
    for (auto& [size, spares] : pool.spares) {
        for (std::size_t i = spares.size(); i-- > 0 && pool.spare_bytes > keep;) {
            if (memory.api.cuEventQuery(spares[i].done) != CUDA_SUCCESS) continue;
            give_range(memory, spares[i].address);
            all.events.push_back(spares[i].done);
            pool.spare_bytes -= size;
            spares.erase(spares.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }
}

void grant(const Agent::Memory& memory, const Pool& pool, CUdeviceptr address) {
    for (int device = 0; device < driver::k_max_devices; ++device) {
        if (device == pool.device || !(pool.access >> device & 1)) continue;
        const std::lock_guard lock(memory.mutex);
        static_cast<void>(memory.heap.allow_access(address, device));
    }
}

Answer allocate_from(const Agent::Memory& memory, CUdeviceptr* address, std::size_t bytes, CUmemoryPool handle,
                     int device, CUstream stream) {
    auto& all = Pools::instance();
    const std::lock_guard lock(all.mutex);
    auto& pool = pool_at(all, handle, device);
    if (!pool.is_caught) return std::nullopt;
    const auto size = rounded(bytes);
    auto block = reuse(all, memory, pool, size, stream);
    if (!block) {
        const auto tag = tag_for(size);
        if (!tag) return std::nullopt;
        const auto try_once = [&] {
            const std::lock_guard memory_lock(memory.mutex);
            return memory.heap.allocate(pool.device, memory.ledger.tag_id(*tag), size);
        };
        auto range = try_once();
        if (!range && range.error().code == ErrorCode::out_of_device_memory) {
            for (auto& [other, each] : all.pools) trim_pool(all, memory, each, 0);
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
    CUcontext context = nullptr;
    static_cast<void>(memory.api.cuCtxGetCurrent(&context));
    Allocations::instance().add({*block, bytes, pool.device, context, handle, 0, false});
    *address = *block;
    return CUDA_SUCCESS;
}

} // namespace

Answer allocate_async(CUdeviceptr* address, std::size_t bytes, std::optional<CUmemoryPool> pool, CUstream stream,
                      bool per_thread) noexcept {
    return answered([&]() -> Answer {
        const auto with = memory();
        if (!with || !address || bytes == 0) return std::nullopt;
        stream = normal(stream, per_thread);
        // In a capture it becomes a node of the graph, whose memory is the driver's.
        if (is_capturing(*with, stream)) return std::nullopt;
        const auto device = current_device(*with);
        if (!device) return std::nullopt;
        const auto handle = pool ? *pool : pool_of_device(*with, *device);
        return handle ? allocate_from(*with, address, bytes, handle, *device, stream) : std::nullopt;
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
        stream = normal(stream, per_thread);
        if (is_capturing(*with, stream)) {
            free_later(*allocation);
            return CUDA_SUCCESS;
        }
        auto& all = Pools::instance();
        const std::lock_guard lock(all.mutex);
        const auto handle = allocation->pool ? allocation->pool : pool_of_device(*with, allocation->device);
        auto& pool = pool_at(all, handle, allocation->device);
        auto* const event = take_event(all, *with);
        if (!event || with->api.cuEventRecord(event, stream) != CUDA_SUCCESS) {
            // Without an event nobody can say when the block is free: wait, and give it back.
            if (event) all.events.push_back(event);
            with->api.cuStreamSynchronize(stream);
            give_range(*with, allocation->address);
            if (allocation->pool) pool.used -= rounded(allocation->bytes);
            return CUDA_SUCCESS;
        }
        if (!allocation->pool) {
            // Plain memory, freed in a stream's order: it is no block of a size class.
            with->api.cuEventSynchronize(event);
            all.events.push_back(event);
            give_range(*with, allocation->address);
            return CUDA_SUCCESS;
        }
        const auto size = rounded(allocation->bytes);
        pool.used -= size;
        pool.spare_bytes += size;
        pool.spares[size].push_back({allocation->address, stream, stream != CU_STREAM_PER_THREAD, event});
        if (pool.spare_bytes > pool.threshold) all.has_excess = true;
        return CUDA_SUCCESS;
    });
}

void synchronized() noexcept {
    auto& all = Pools::instance();
    if (!all.has_excess.load(std::memory_order_relaxed) || captures_open() != 0) return;
    // Programs that synchronise after every step would make and release the same ranges again and again: 54 us for
    // each 2 MiB (catch_bench, "in stream order").
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
    });
}

void trim() noexcept {
    noted([&] {
        const auto with = memory();
        if (!with) return;
        auto& all = Pools::instance();
        const std::lock_guard lock(all.mutex);
        for (auto& [handle, pool] : all.pools) trim_pool(all, *with, pool, 0);
    });
}

void stream_destroyed(CUstream stream) noexcept {
    noted([&] {
        // A later stream may get the same handle, and its order is another.
        auto& all = Pools::instance();
        const std::lock_guard lock(all.mutex);
        for (auto& [handle, pool] : all.pools)
            for (auto& [size, spares] : pool.spares)
                for (auto& spare : spares) spare.in_order &= spare.stream != stream;
    });
}

void pool_created(CUmemoryPool handle, const CUmemPoolProps& properties) noexcept {
    noted([&] {
        auto& all = Pools::instance();
        const std::lock_guard lock(all.mutex);
        auto& pool = pool_at(all, handle, properties.location.id);
        pool.is_caught = properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                         properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE && properties.maxSize == 0;
    });
}

void pool_destroyed(CUmemoryPool handle) noexcept {
    noted([&] {
        const auto with = memory();
        if (!with) return;
        auto& all = Pools::instance();
        const std::lock_guard lock(all.mutex);
        const auto found = all.pools.find(handle);
        if (found == all.pools.end()) return;
        for (auto& [size, spares] : found->second.spares) {
            for (auto& spare : spares) {
                with->api.cuEventSynchronize(spare.done);
                give_range(*with, spare.address);
                all.events.push_back(spare.done);
            }
        }
        all.pools.erase(found);
    });
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
        const auto device = with ? current_device(*with) : std::nullopt;
        auto found = all.pools.find(handle);
        if (found == all.pools.end() && device) {
            pool_at(all, handle, *device);
            found = all.pools.find(handle);
        }
        if (found != all.pools.end()) found->second.threshold = bytes;
    });
}

void pool_access(CUmemoryPool handle, const CUmemAccessDesc* grants, std::size_t count) noexcept {
    noted([&] {
        const auto with = memory();
        if (!with) return;
        auto& all = Pools::instance();
        const std::lock_guard lock(all.mutex);
        const auto found = all.pools.find(handle);
        if (found == all.pools.end()) return;
        auto& pool = found->second;
        for (std::size_t i = 0; i < count; ++i) {
            const auto& granted = grants[i];
            if (granted.location.type != CU_MEM_LOCATION_TYPE_DEVICE || granted.location.id < 0 ||
                granted.location.id >= driver::k_max_devices)
                continue;
            const auto bit = driver::DeviceMask{1} << granted.location.id;
            pool.access =
                granted.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? pool.access | bit : pool.access & ~bit;
        }
        const auto theirs = Allocations::instance().all([&](const Known& a) { return a.pool == handle; });
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
