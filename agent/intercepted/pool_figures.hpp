// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What pools say of themselves.

#pragma once

#include <cuda.h>

namespace gpu_sleep::agent::intercepted {

/// Adds what we hold for the pool to what the driver answered.
void add_pool_figures(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) noexcept;
/// After the driver allocated of the pool, which may be one of which we have memory, too.
void pool_left_to_driver(CUmemoryPool pool) noexcept;

} // namespace gpu_sleep::agent::intercepted
