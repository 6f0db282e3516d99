// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a pool had at the most, and what of it the driver has. Internal to this module.

#pragma once

#include "intercepted/pool_table.hpp"

#include <cuda.h>

namespace gpu_sleep::agent::intercepted {
// The caller of each function holds the mutex of all pools, and its thread's capture mode is relaxed.

/// What the driver itself has of a pool; nothing for one that is gone.
[[nodiscard]] PoolFigures figures_of_driver(ProgramMemory& memory, const Pool& pool) noexcept;
/// After the pool, or the driver's part of it, grew.
void note_peaks(ProgramMemory& memory, Pool& pool) noexcept;
/// A peak begins anew.
void reset_peak(Pools& all, ProgramMemory& memory, Pool& pool, CUmemPool_attribute attribute)
    GPU_SLEEP_REQUIRES(all.mutex);

} // namespace gpu_sleep::agent::intercepted
