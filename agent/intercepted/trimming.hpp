// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// When pools give memory back.

#pragma once

#include "intercepted/allocations.hpp"
#include "intercepted/pending_removal.hpp"

#include <cuda.h>

namespace gpu_sleep::agent {
class ProgramMemory;
}

namespace gpu_sleep::agent::intercepted {

/// The program waited for some or all of its work: pools give back what exceeds their thresholds.
void synchronized() noexcept;
/// Pools give back what they owe since the last synchronise, if they have not since.
void give_back_due() noexcept;
/// Gives back every cached block that nobody uses: before a sleep, and when memory is short.
void trim() noexcept;
/// Frees an allocation, asleep or awake, as give_range() does. It may be a pool's, which keeps it as it keeps
/// what a synchronise left free.
void give_allocation(ProgramMemory& memory, const Allocation& allocation);
/// Takes an allocation that is not freed in a stream's order out of its pool's count.
void freed_from_pool(const Allocation& allocation);
/// Takes out the freed blocks whose last use was in the context, and the events made there. Where it throws
/// for want of memory nothing has changed.
[[nodiscard]] PendingRemoval take_pools_of(ProgramMemory& memory, CUcontext context);
/// Blocks that were freed in the stream's order wait for their events from now on.
void forget_order_of(CUstream stream);
/// The same for all streams of a green context; their events are its primary context's.
void forget_order_of(CUcontext green, CUcontext primary);

} // namespace gpu_sleep::agent::intercepted
