// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Pools, the ranges that they have taken, and the blocks in those: given out, or spare. When a freed block
// may be had again, how blocks are split and joined, and which ranges nobody uses. How a pool has to behave
// is in POOLS.md, what the program's calls mean for it in pools.cpp. What pools say of themselves is the sum
// of what we have of them and what the driver has. Internal to this module, but for what hooks call.

#pragma once

#include "base/guard.hpp"
#include "base/memory.hpp"
#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "driver/context.hpp"
#include "driver/memory.hpp"
#include "intercepted/state.hpp"

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace gpu_sleep::agent::intercepted {

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
    bool is_held = false; ///< its context is about to end: nobody may ask its event, nor have the block
};

/// The sizes and addresses of spares.
using Sizes = std::set<std::pair<Bytes, CUdeviceptr>>;

/// The figures that a pool reports.
struct PoolFigures {
    Bytes used = 0; ///< as the program asked for it
    Bytes reserved = 0;
    Bytes used_high = 0; ///< of what we and the driver have of the pool together
    Bytes reserved_high = 0;
};

/// A pool of the program, or the pool of a device.
struct Pool {
    CUmemoryPool handle = nullptr;
    int device = 0;
    bool is_intercepted = true;  ///< made of the device's own memory, and never shared
    bool is_gone = false;        ///< destroyed: only what was allocated from it lives on
    bool is_mixed = false;       ///< the driver has some of its memory, too
    bool reuses_unwaited = true; ///< CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
    Bytes threshold = 0;         ///< what it may have reserved across a synchronise
    driver::DeviceMask access = 0;
    PoolFigures figures;
    Sizes spares;                     ///< of all its ranges
    std::size_t frees_since_join = 0; ///< join_done()
    std::size_t unused_ranges = 0;    ///< of which nothing is given out
};

/// Memory that a pool took at a time: one backing, of one tag.
struct Range {
    std::shared_ptr<Pool> pool;
    CUdeviceptr address = 0;
    Bytes bytes = 0;
    ledger::TagId tag = 0;
    std::size_t live = 0; ///< blocks that are given out
};

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

/// Plain memory that was freed in a stream's order.
struct PendingFree {
    CUdeviceptr address = 0;
    LastUse last_use;
};

/// All pools. Its mutex comes before the memory's. Nobody waits for work under it.
struct Pools {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::pools) GPU_SLEEP_ACQUIRED_BEFORE(lock_order::memory);
    std::map<CUmemoryPool, std::shared_ptr<Pool>> pools GPU_SLEEP_GUARDED_BY(mutex);
    std::map<CUdeviceptr, Range> ranges GPU_SLEEP_GUARDED_BY(mutex);
    Blocks blocks GPU_SLEEP_GUARDED_BY(mutex);
    std::vector<PendingFree> pending_frees GPU_SLEEP_GUARDED_BY(mutex); ///< given back once they are done
    std::atomic<bool> has_excess{false};      ///< some pool has more than its threshold, or a free is pending
    std::atomic<bool> is_due{false};          ///< the program synchronised since, nothing was given back
    std::atomic<std::uint64_t> free_calls{0}; ///< how often blocks were freed
    std::atomic<std::uint64_t> synchronized_to{0}; ///< those up to which were before a synchronise
    std::atomic<Clock::time_point> next_trim{Clock::time_point{}};
};

/// Calls `use` with all pools, under their mutex, while there is memory that can sleep. Lets nothing cross.
template <class Use>
void with_pools(Use&& use) noexcept {
    // Clang does not see that the mutex which `use` requires is that of the pools it is given.
    ignoring_errors([&]() GPU_SLEEP_UNCHECKED {
        const auto with = memory();
        if (!with) return;
        const driver::RelaxedCaptureMode relaxed(with->api());
        auto& all = immortal<Pools>();
        const MutexLock lock(all.mutex);
        use(all, *with);
    });
}

/// Adds what we hold for the pool to what the driver answered. What a synchronise owes is gone before
/// (give_back_due()).
void add_pool_figures(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) noexcept;
/// After the driver allocated of the pool, which may be one of which we have memory, too.
void note_mixed_pool(CUmemoryPool pool) noexcept;

// The caller of each of these holds the mutex of all pools, and its thread's capture mode is relaxed.

/// Returns a figure of the driver's part of the pool; 0 if it has none.
[[nodiscard]] Bytes figure_of_driver(ProgramMemory& memory, const Pool& pool,
                                     CUmemPool_attribute attribute) noexcept;
/// Returns the bytes that the agent and the driver have reserved together.
[[nodiscard]] Bytes reserved_in_all(ProgramMemory& memory, const Pool& pool) noexcept;
/// After the pool, or the driver's part of it, grew.
void note_peaks(ProgramMemory& memory, Pool& pool) noexcept;

// The caller of each function holds the mutex of all pools, and its thread's capture mode is relaxed.

struct BlockRequest {
    Bytes bytes = 0; ///< a multiple of what block_size() gives
    ledger::TagId tag = 0;
    StreamKey key;
};

/// Returns the size of the block for so many bytes.
[[nodiscard]] Bytes block_size(Bytes bytes) noexcept;
/// A block of a spare that the stream may use now, of a range of the same tag that is awake and may sleep.
/// Where `is_any`, of whichever range; else of one that is not much too large: one small block would keep all
/// of it. In a capture of any stream no event is asked.
[[nodiscard]] std::optional<CUdeviceptr> take_spare(Pools& all, ProgramMemory& memory, Pool& pool,
                                                    const BlockRequest& request, bool is_any)
    GPU_SLEEP_REQUIRES(all.mutex);
/// A block of a new range. Errors: those of Heap::allocate().
[[nodiscard]] Result<CUdeviceptr> take_new(Pools& all, ProgramMemory& memory,
                                           const std::shared_ptr<Pool>& pool, const BlockRequest& request)
    GPU_SLEEP_REQUIRES(all.mutex);
/// Makes a live block a spare, joined with its neighbours. Takes no memory.
void make_spare(Pools& all, Blocks::iterator block, const LastUse& last_use) noexcept
    GPU_SLEEP_REQUIRES(all.mutex);
/// Notes that nobody uses a freed block any more, and returns whether that is so.
[[nodiscard]] bool note_if_done(ProgramMemory& memory, LastUse& last_use);
/// An event that says when the stream has come so far; nothing when none can be had.
[[nodiscard]] std::optional<LastUse> last_use_in(Pools& all, ProgramMemory& memory, const StreamKey& key)
    GPU_SLEEP_REQUIRES(all.mutex);
/// Gives the ranges back that are wanted, one after the other, and in which nobody uses anything any more.
void give_back_idle(Pools& all, ProgramMemory& memory, const std::function<bool(const Range&)>& wanted)
    GPU_SLEEP_REQUIRES(all.mutex);
/// Whether the range may go at a synchronise.
[[nodiscard]] bool is_excess(ProgramMemory& memory, const Range& range) noexcept;

} // namespace gpu_sleep::agent::intercepted
