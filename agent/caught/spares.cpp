// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Spares: when a freed block may be had again, and when it is given back.

#include "caught/spares.hpp"

#include "caught/event_cache.hpp"
#include "driver/context.hpp"

#include <iterator>
#include <utility>

namespace gpu_sleep::agent::caught {
namespace {

void give_event(const Spare& spare) {
    EventCache::instance().give(spare.freed_in.context, spare.done);
}

/// Whether an allocation of `tag` may have it: what backs it stays as its first owner had it, pinned if so.
/// In part asleep a checked gate lets allocations pass: they must not be given what sleeps.
bool suits(const Agent::Memory& memory, CUdeviceptr address, ledger::TagId tag) {
    const std::lock_guard lock(memory.mutex);
    const auto* backing = memory.ledger.find(address);
    return backing && backing->tag == tag && !backing->pinned && !backing->is_asleep();
}

/// Frees the spare if nobody uses it any more. The thread's capture mode is relaxed.
bool free_if_done(const Agent::Memory& memory, const Spare& spare) {
    if (memory.api.cuEventQuery(spare.done) != CUDA_SUCCESS) return false;
    give_range(memory, spare.address);
    give_event(spare);
    return true;
}

} // namespace

Bytes block_size(Bytes bytes) {
    constexpr Bytes k_least = 512;
    if (bytes <= k_least) return k_least;
    if (bytes > 2 * k_mib) return round_up(bytes, 2 * k_mib);
    Bytes power = k_least;
    while (power * 2 < bytes) power *= 2;
    return round_up(bytes, power / 4);
}

std::optional<CUdeviceptr> take_spare(const Agent::Memory& memory, Pool& pool, Bytes size, ledger::TagId tag,
                                      const StreamKey& key) {
    const auto found = pool.spares.find(size);
    if (found == pool.spares.end()) return std::nullopt;
    auto& spares = found->second;
    // The youngest first: its contents are likeliest to be cached, and it is likeliest to be of this stream.
    for (auto spare = spares.rbegin(); spare != spares.rend(); ++spare) {
        if (!suits(memory, spare->address, tag)) continue;
        const bool is_usable = (spare->in_order && spare->freed_in == key) ||
                               (captures_open() == 0 && memory.api.cuEventQuery(spare->done) == CUDA_SUCCESS);
        if (!is_usable) continue;
        const auto address = spare->address;
        give_event(*spare);
        spares.erase(std::next(spare).base());
        pool.spare_bytes -= size;
        return address;
    }
    return std::nullopt;
}

void trim_pool(const Agent::Memory& memory, Pool& pool, Bytes keep) {
    const driver::RelaxedCaptureMode relaxed(memory.api);
    for (auto& [size, spares] : pool.spares) {
        for (std::size_t i = spares.size(); i-- > 0 && pool.spare_bytes > keep;) {
            if (!free_if_done(memory, spares[i])) continue;
            pool.spare_bytes -= size;
            spares.erase(spares.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }
}

void trim_leaving(Pools& all, const Agent::Memory& memory) {
    const driver::RelaxedCaptureMode relaxed(memory.api);
    std::erase_if(all.leaving, [&](const Spare& spare) { return free_if_done(memory, spare); });
    if (!all.leaving.empty()) all.has_excess = true;
}

void trim_all(Pools& all, const Agent::Memory& memory) {
    for (auto& [handle, pool] : all.pools) trim_pool(memory, pool, 0);
    trim_leaving(all, memory);
}

bool keep_until_done(Pools& all, const Agent::Memory& memory, Pool* pool, const Known& allocation,
                     const StreamKey& key) {
    auto* const event = EventCache::instance().take(memory.api, key.context);
    if (!event) return false;
    const Spare spare{allocation.address, key, key.stream != CU_STREAM_PER_THREAD, event};
    if (memory.api.cuEventRecord(event, key.stream) != CUDA_SUCCESS) {
        give_event(spare);
        return false;
    }
    if (!pool) {
        // Plain memory, or of a pool that is gone: it is no block that anybody may have again.
        all.leaving.push_back(spare);
        all.has_excess = true;
        return true;
    }
    const auto size = block_size(allocation.bytes);
    pool->spares[size].push_back(spare);
    pool->spare_bytes += size;
    if (pool->spare_bytes > pool->threshold) all.has_excess = true;
    return true;
}

Taken take_pools_of(const Agent::Memory& memory, CUcontext context) {
    struct Taking {
        CUmemoryPool pool; ///< null: of no pool
        Bytes size;
        Spare spare;
    };
    auto& all = Pools::instance();
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
    }
    const auto events = EventCache::instance().take_all_of(context);
    // With the context its work is over, and its events are gone.
    auto gone = [=] {
        for (const auto& taken : spares) give_range(memory, taken.spare.address);
    };
    auto stays = [=, &all] {
        EventCache::instance().put_back(context, events);
        const std::lock_guard lock(all.mutex);
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
            trim_pool(*with, pool, pool.threshold);
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

void forget_order_of(CUcontext green, CUcontext primary) {
    auto& all = Pools::instance();
    const std::lock_guard lock(all.mutex);
    const auto hand_over = [&](Spare& spare) {
        if (spare.freed_in.context != green) return;
        spare.freed_in.context = primary;
        spare.in_order = false;
    };
    for (auto& [handle, pool] : all.pools)
        for (auto& [size, spares] : pool.spares)
            for (auto& spare : spares) hand_over(spare);
    for (auto& spare : all.leaving) hand_over(spare);
    EventCache::instance().hand_on(green, primary);
}

} // namespace gpu_sleep::agent::caught
