// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that belongs to no pool: what the program takes by cuMemAlloc and its like, or from the C API. Where
// its calls are intercepted both are in the index of allocations: other calls name them. And which devices
// reach it: copies from every device do, and kernels once the program has asked for it. Source: CUDA Driver
// API, Memory Management.

#pragma once

#include "gate/gate.hpp"
#include "intercepted/calls.hpp"

#include <cuda.h>

#include <cstddef>
#include <string_view>

namespace gpu_sleep::agent::intercepted {

[[nodiscard]] Answer allocate(CUdeviceptr* address, std::size_t bytes, ResidualRecord& residual) noexcept;
[[nodiscard]] Answer allocate_pitched(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                      std::size_t height, unsigned element_bytes,
                                      ResidualRecord& residual) noexcept;
/// Waits for the work of the memory's context, as the driver's own does.
[[nodiscard]] Answer free(CUdeviceptr address) noexcept;

/// cuMemGetAccess of `known`, whether it sleeps or not, where the driver answered `status` and `flags`.
/// Source: CUDA Driver API, cuMemGetAccess; what it says of plain memory was seen.
[[nodiscard]] CUresult access_of(const Allocation& known, const CUmemLocation& location, CUresult status,
                                 unsigned long long& flags) noexcept;
/// The current context may reach memory of `peer`'s device from now on.
void peer_access_enabled(CUcontext peer) noexcept;
/// The driver refused a copy, as it does when an intercepted range lies on a device that the copy's context
/// was not granted access from. Grants it to all devices in use; false when nothing was missing.
[[nodiscard]] bool let_copies_reach(const gate::Inspector& copy) noexcept;

// All are thread-safe.

/// Errors: those of ProgramMemory::allocate().
[[nodiscard]] Result<driver::DeviceAddress> allocate_own(ProgramMemory& memory, int device,
                                                         std::string_view tag, Bytes bytes);
/// Waits for the work that may use the allocation, and frees it. Errors: not_owned (none of allocate_own()
/// begins there, or another thread was faster); capture_in_progress; those of ProgramMemory::free(), and of
/// driver::drain() but context_lost.
[[nodiscard]] Result<void> free_own(ProgramMemory& memory, driver::DeviceAddress address);
/// Errors: those of ProgramMemory::allow_access().
[[nodiscard]] Result<void> allow_own(ProgramMemory& memory, driver::DeviceAddress address, int device);

} // namespace gpu_sleep::agent::intercepted
