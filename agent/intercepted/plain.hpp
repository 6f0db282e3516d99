// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that belongs to no pool: what the program takes by cuMemAlloc and its like, or from the C API. Where
// its calls are intercepted both are in the index of allocations: other calls name them. Source: CUDA Driver
// API, Memory Management.

#pragma once

#include "base/error.hpp"
#include "base/units.hpp"
#include "driver/memory.hpp"
#include "intercepted/calls.hpp"

#include <cuda.h>

#include <cstddef>
#include <string_view>

namespace gpu_sleep::agent {
class ProgramMemory;
}

namespace gpu_sleep::agent::intercepted {

[[nodiscard]] Answer allocate(CUdeviceptr* address, std::size_t bytes, ResidualCause& cause) noexcept;
[[nodiscard]] Answer allocate_pitched(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                      std::size_t height, unsigned element_bytes,
                                      ResidualCause& cause) noexcept;
/// Waits for the work of the memory's context, as the driver's own does.
[[nodiscard]] Answer free(CUdeviceptr address) noexcept;

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
