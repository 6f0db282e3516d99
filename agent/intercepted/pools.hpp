// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Stream-ordered memory and its pools. `per_thread`: the null stream is the thread's own.

#pragma once

#include "intercepted/calls.hpp"

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <optional>

namespace gpu_sleep::agent::intercepted {

[[nodiscard]] Answer allocate_async(CUdeviceptr* address, std::size_t bytes, std::optional<CUmemoryPool> pool,
                                    CUstream stream, bool per_thread, ResidualRecord& residual) noexcept;
[[nodiscard]] Answer free_async(CUdeviceptr address, CUstream stream, bool per_thread) noexcept;
void pool_created(CUmemoryPool pool, const CUmemPoolProps& properties) noexcept;
/// Runs the driver's cuMemPoolDestroy; what was allocated from the pool lives on.
CUresult end_pool(CUmemoryPool pool, const std::function<CUresult()>& destroy) noexcept;
void pool_trimmed(CUmemoryPool pool, std::size_t keep) noexcept;
/// After the driver set an attribute: the threshold, a switch, or a peak that begins anew.
void pool_set(CUmemoryPool pool, CUmemPool_attribute attribute, const void* value) noexcept;
void pool_access(CUmemoryPool pool, const CUmemAccessDesc* grants, std::size_t count) noexcept;

} // namespace gpu_sleep::agent::intercepted
