// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's own virtual memory: its handles, its mappings, and which of them have to stay.

#pragma once

#include "gate/gate.hpp"
#include "intercepted/calls.hpp"

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace gpu_sleep::agent::intercepted {

[[nodiscard]] Answer create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                            const CUmemAllocationProp* properties, unsigned long long flags) noexcept;
[[nodiscard]] Answer release(CUmemGenericAllocationHandle handle) noexcept;
[[nodiscard]] Answer retain_handle(CUmemGenericAllocationHandle* handle, const void* address) noexcept;
[[nodiscard]] Answer properties_of(CUmemAllocationProp* properties,
                                   CUmemGenericAllocationHandle handle) noexcept;
/// Adds where the handle's memory is mapped; nothing for one that is none of ours. May throw for want of
/// memory.
void add_mappings_of(CUmemGenericAllocationHandle handle, gate::Named& named);

[[nodiscard]] Answer map(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) noexcept;
[[nodiscard]] Answer unmap(CUdeviceptr address, std::size_t bytes) noexcept;
[[nodiscard]] Answer set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* grants,
                                std::size_t count) noexcept;
/// Whether the program has something mapped there, awake or asleep.
[[nodiscard]] bool has_mappings_in(CUdeviceptr address, std::size_t bytes) noexcept;
/// Whether memory that the program mapped itself sleeps, which it cannot unmap.
[[nodiscard]] bool own_mappings_sleep() noexcept;
/// Runs `use` with the driver's handle behind the program's, or with the handle itself when it is none of
/// ours. If it succeeds the memory has to stay where it is from now on; `reason` says why. The caller passes
/// the gate meanwhile, so that nothing moves.
CUresult use_handle(CUmemGenericAllocationHandle handle, const char* reason,
                    const std::function<CUresult(CUmemGenericAllocationHandle)>& use) noexcept;
/// Runs the driver's cuMemMapArrayAsync on a copy of `maps` that has the driver's handles.
CUresult map_arrays(const CUarrayMapInfo* maps, unsigned count,
                    const std::function<CUresult(CUarrayMapInfo*)>& map) noexcept;
/// Memory in the span has to stay where it is from now on. The caller passes the gate since before it was
/// given away.
void make_span_stay(CUdeviceptr address, std::size_t bytes, const char* reason) noexcept;
/// Adds the program's handles whose memory cannot sleep.
void add_handles_that_stay(std::vector<Residual>& sums);

} // namespace gpu_sleep::agent::intercepted
