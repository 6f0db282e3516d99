// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Stream-ordered memory and its pools. `per_thread`: the null stream is the thread's own.

#pragma once

#include "intercepted/allocations.hpp"
#include "intercepted/answer.hpp"

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <optional>

namespace gpu_sleep::agent {
class ProgramMemory;
}

namespace gpu_sleep::agent::intercepted {

[[nodiscard]] Answer allocate_async(CUdeviceptr* address, std::size_t bytes, std::optional<CUmemoryPool> pool,
                                    CUstream stream, bool per_thread, Left& left) noexcept;
[[nodiscard]] Answer free_async(CUdeviceptr address, CUstream stream, bool per_thread) noexcept;
void pool_created(CUmemoryPool pool, const CUmemPoolProps& properties) noexcept;
/// Runs the driver's cuMemPoolDestroy with the pool out of the books; what was allocated from it lives on.
CUresult end_pool(CUmemoryPool pool, const std::function<CUresult()>& destroy) noexcept;
void pool_trimmed(CUmemoryPool pool, std::size_t keep) noexcept;
/// After the driver set an attribute: the threshold, a switch, or a peak that begins anew.
void pool_set(CUmemoryPool pool, CUmemPool_attribute attribute, const void* value) noexcept;
void pool_access(CUmemoryPool pool, const CUmemAccessDesc* grants, std::size_t count) noexcept;
/// Frees an allocation, asleep or awake, as give_range() does. It may be a pool's, which keeps it as it keeps
/// what a synchronise left free.
void give_allocation(ProgramMemory& memory, const Known& allocation);
/// Takes an allocation that is not freed in a stream's order out of its pool's count.
void freed_from_pool(const Known& allocation);

} // namespace gpu_sleep::agent::intercepted
