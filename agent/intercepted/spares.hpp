// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Spares: when a freed block may be had again, how blocks are split and joined, and which ranges nobody uses.
// Internal to this module.

#pragma once

#include "intercepted/pool_table.hpp"

#include <functional>
#include <memory>
#include <optional>

namespace gpu_sleep::agent::intercepted {
// The caller of each function holds the mutex of all pools, and its thread's capture mode is relaxed.

/// What an allocation asks for.
struct BlockRequest {
    Bytes bytes = 0; ///< a multiple of what block_size() gives
    ledger::TagId tag = 0;
    StreamKey key;
};

/// What a block of so many bytes takes.
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
