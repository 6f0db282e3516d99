// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory of the program's that has to stay where it is, and the sum of all that stays on the GPU while the
// program sleeps, and why.

#pragma once

#include "intercepted/residents.hpp"

#include <cstddef>
#include <cuda.h>
#include <functional>
#include <vector>

namespace gpu_sleep::agent {
class LockedMemory;
}

namespace gpu_sleep::agent::intercepted {

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
/// A row for each kind, device and reason; of a program that is not intercepted, only for what the agent has
/// allocated. Thins where memory is short.
[[nodiscard]] std::vector<Residual> residual(const LockedMemory& locked) noexcept;

} // namespace gpu_sleep::agent::intercepted
