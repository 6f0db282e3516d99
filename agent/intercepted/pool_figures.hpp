// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What pools say of themselves: what we have of them and what the driver has, as one sum.

#pragma once

#include "intercepted/pool_table.hpp"

#include <cuda.h>

namespace gpu_sleep::agent::intercepted {

/// Adds what we hold for the pool to what the driver answered. What a synchronise owes is gone before
/// (give_back_due()).
void add_pool_figures(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) noexcept;
/// After the driver allocated of the pool, which may be one of which we have memory, too.
void pool_left_to_driver(CUmemoryPool pool) noexcept;

// The caller of each of these holds the mutex of all pools, and its thread's capture mode is relaxed.

/// What the driver says of its part of the pool; 0 where it has none.
[[nodiscard]] Bytes figure_of_driver(ProgramMemory& memory, const Pool& pool,
                                     CUmemPool_attribute attribute) noexcept;
/// What we and the driver have reserved.
[[nodiscard]] Bytes reserved_in_all(ProgramMemory& memory, const Pool& pool) noexcept;
/// After the pool, or the driver's part of it, grew.
void note_peaks(ProgramMemory& memory, Pool& pool) noexcept;

} // namespace gpu_sleep::agent::intercepted
