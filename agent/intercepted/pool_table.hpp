// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// When a freed block may be had again, how blocks are split and joined, and which ranges nobody uses. How a
// pool has to behave is in POOLS.md, what the program's calls mean for it in pools.cpp. What pools say of
// themselves is the sum of what we have of them and what the driver has.

#pragma once

#include "intercepted/calls.hpp"

namespace gpu_sleep::agent::intercepted {

/// Calls `use` with all pools, under their mutex, while there is memory that can sleep. Lets nothing cross.
template <class Use>
void with_pools(Use&& use) noexcept {
    // Clang does not see that the mutex which `use` requires is that of the pools it is given.
    ignoring_errors([&]() GPU_SLEEP_UNCHECKED {
        const auto with = memory();
        if (!with) return;
        const driver::RelaxedCaptureMode relaxed(with->api());
        auto& all = books().pools;
        const MutexLock lock(all.mutex);
        use(all, *with);
    });
}

// The caller of each of these holds the mutex of all pools, and its thread's capture mode is relaxed.

/// Returns a figure of the driver's part of the pool; 0 if it has none.
[[nodiscard]] Bytes figure_of_driver(ProgramMemory& memory, const Pool& pool,
                                     CUmemPool_attribute attribute) noexcept;
/// Returns the bytes that the agent and the driver have reserved together.
[[nodiscard]] Bytes reserved_in_all(ProgramMemory& memory, const Pool& pool) noexcept;
/// After the pool, or the driver's part of it, grew.
void note_peaks(ProgramMemory& memory, Pool& pool) noexcept;

/// What blocks begin at multiples of, as the driver's own do.
inline constexpr Bytes k_block_step = 512;

struct BlockRequest {
    Bytes bytes = 0; ///< a multiple of k_block_step
    ledger::TagId tag = 0;
    StreamKey key;
};

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
/// Makes a live block a spare, joined with its neighbours, which nobody shares any more. Takes no memory.
void make_spare(Pools& all, ProgramMemory& memory, Blocks::iterator block, const LastUse& last_use) noexcept
    GPU_SLEEP_REQUIRES(all.mutex);
/// An event that says when the stream has come so far; nothing when none can be had.
[[nodiscard]] std::optional<LastUse> last_use_in(Pools& all, ProgramMemory& memory, const StreamKey& key)
    GPU_SLEEP_REQUIRES(all.mutex);
/// Gives the ranges back that are wanted, one after the other, and in which nobody uses anything any more.
void give_back_idle(Pools& all, ProgramMemory& memory, const std::function<bool(const Range&)>& wanted)
    GPU_SLEEP_REQUIRES(all.mutex);
/// Whether the range may go at a synchronise.
[[nodiscard]] bool is_excess(ProgramMemory& memory, const Range& range) noexcept;

} // namespace gpu_sleep::agent::intercepted
