// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Pools, the ranges that they have taken, and the blocks in those: given out, or spare. What becomes of
// blocks is in intercepted/pool_table.hpp.

#pragma once

#include "base/process.hpp"
#include "common/lock_order.hpp"
#include "driver/memory.hpp"
#include "ledger/ledger.hpp"

#include <set>

namespace gpu_sleep::agent::registry {

/// A stream, and its context: every context has default streams of the same handles, and an event only works
/// in its own.
struct StreamKey {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    friend bool operator==(const StreamKey&, const StreamKey&) = default;
};

/// When the last user of a freed block is done with it.
struct LastUse {
    StreamKey freed_in;
    bool in_order = false;       ///< that stream may have it at once
    CUevent done = nullptr;      ///< of the stream's context; null: it is done
    std::uint64_t free_call = 0; ///< Pools::free_calls at that time
};

/// The sizes and addresses of spares.
using Sizes = std::set<std::pair<Bytes, CUdeviceptr>>;

/// A pool of the program, or the pool of a device.
struct Pool {
    CUmemoryPool handle = nullptr;
    int device = 0;
    bool is_intercepted = true; ///< made of the device's own memory, and not left to the driver
    bool is_exported = false;
    std::uint32_t number = 0; ///< of one that can be shared, by which its owner knows it; else 0
    std::optional<ProcessIdentity> owner{}; ///< of one that is imported, which has no memory itself
    bool is_gone = false;                   ///< destroyed: only what was allocated from it lives on
    bool is_mixed = false;                  ///< the driver has some of its memory, too
    bool reuses_unwaited = true;            ///< CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
    Bytes threshold = 0;                    ///< what it may have reserved across a synchronise
    driver::DeviceMask access = 0;
    Bytes used = 0; ///< as the program asked for it
    Bytes reserved = 0;
    Bytes used_high = 0; ///< of what we and the driver have of the pool together
    Bytes reserved_high = 0;
    Sizes spares{};                   ///< of all its ranges
    std::size_t frees_since_join = 0; ///< join_done()
    std::size_t unused_ranges = 0;    ///< of which nothing is given out
};

/// Memory that a pool took at a time: one backing, of one tag.
struct Range {
    std::shared_ptr<Pool> pool;
    Bytes bytes = 0;
    ledger::TagId tag = 0;
    std::size_t live = 0; ///< blocks that are given out
};
using Ranges = std::map<CUdeviceptr, Range>;

/// A part of a range: the blocks of a range fill it. Takes all the memory that it will ever need when it is
/// made, so that freeing one cannot fail.
struct Block {
    Range* range = nullptr;
    Bytes bytes = 0;
    bool is_live = false;
    LastUse last_use;      ///< of a spare
    Sizes::node_type size; ///< its place among the spares while it is none
};
using Blocks = std::map<CUdeviceptr, Block>;

/// All pools. Its mutex comes before the memory's. Nobody waits for work under it.
struct Pools {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::pools) GPU_SLEEP_ACQUIRED_BEFORE(lock_order::memory);
    std::map<CUmemoryPool, std::shared_ptr<Pool>> pools GPU_SLEEP_GUARDED_BY(mutex);
    std::uint32_t last_number GPU_SLEEP_GUARDED_BY(mutex) = 0;
    Ranges ranges GPU_SLEEP_GUARDED_BY(mutex);
    Blocks blocks GPU_SLEEP_GUARDED_BY(mutex);
    /// The context that may end just now: one at a time.
    CUcontext ending GPU_SLEEP_GUARDED_BY(mutex) = nullptr;
    /// Some pool has more than its threshold, or memory that was freed in a stream's order waits.
    std::atomic<bool> has_excess{false};
    std::atomic<bool> is_due{false};               ///< the program synchronised since, nothing was given back
    std::atomic<std::uint64_t> free_calls{0};      ///< how often blocks were freed
    std::atomic<std::uint64_t> synchronized_to{0}; ///< those up to which were before a synchronise
    std::atomic<Clock::time_point> next_trim{Clock::time_point{}};

    /// Nobody may have what was freed in the context that may end just now, nor ask for its end.
    [[nodiscard]] bool is_held(const LastUse& use) const noexcept GPU_SLEEP_REQUIRES(mutex) {
        return use.done && use.freed_in.context == ending;
    }
    /// That context has ended, and with it its work and its events; or it stays.
    void settle(bool is_gone) noexcept {
        const MutexLock lock(mutex);
        for (auto& [address, block] : blocks)
            if (is_gone && is_held(block.last_use)) block.last_use = {};
        ending = nullptr;
        has_excess = true;
    }
    /// What was freed in the stream's order waits for its event from now on.
    void forget_order_of(CUstream stream) noexcept {
        const MutexLock lock(mutex);
        for (auto& [address, block] : blocks)
            block.last_use.in_order &= block.last_use.freed_in.stream != stream;
    }
    /// The same for all streams of a green context, whose events are its primary one's.
    void forget_order_of(CUcontext green, CUcontext primary) noexcept {
        const MutexLock lock(mutex);
        for (auto& [address, block] : blocks) {
            if (block.last_use.freed_in.context != green) continue;
            block.last_use.freed_in.context = primary;
            block.last_use.in_order = false;
        }
    }
    /// An allocation is freed, now or later: the program has no more of its pool, if it is of one.
    void count_freed(CUdeviceptr address, Bytes bytes) noexcept {
        const MutexLock lock(mutex);
        const auto block = blocks.find(address);
        if (block != blocks.end()) block->second.range->pool->used -= bytes;
    }
};

} // namespace gpu_sleep::agent::registry
