// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that the program has from the C API. Where its calls are intercepted it is in the index of
// allocations too: other calls name it.

#pragma once

#include "base/error.hpp"
#include "base/units.hpp"
#include "driver/memory.hpp"

#include <string_view>

namespace gpu_sleep::agent {
class ProgramMemory;
}

namespace gpu_sleep::agent::intercepted {

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
