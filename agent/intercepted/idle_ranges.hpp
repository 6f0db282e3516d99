// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Giving back the ranges of pools in which nobody uses anything any more. Internal to this module.

#pragma once

#include "intercepted/pool_table.hpp"

#include <functional>

namespace gpu_sleep::agent::intercepted {
// The caller of each function holds the mutex of all pools, and its thread's capture mode is relaxed.

/// Gives the ranges back that are wanted, one after the other, and in which nobody uses anything any more.
/// `is_synchronized`: only what was freed before the program synchronised.
void give_back_idle(Pools& all, ProgramMemory& memory, bool is_synchronized,
                    const std::function<bool(const Range&)>& wanted) GPU_SLEEP_REQUIRES(all.mutex);
/// Whether the range may go at a synchronise.
[[nodiscard]] bool is_excess(ProgramMemory& memory, const Range& range) noexcept;
/// Frees the blocks of no pool that nobody uses any more.
void finish_pending_frees(Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex);
/// Gives back every range, and block of no pool, that nobody uses any more.
void trim_all(Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex);
/// Gives back what exceeds the thresholds.
void trim_excess(Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex);

} // namespace gpu_sleep::agent::intercepted
