// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The stand-ins of entry points that this build does not know: a fixed number of jumps.

#pragma once

namespace gpu_sleep::hooks {

/// A function to give the program in place of the unknown one at `address`, which it asked for as `name`. The
/// CUDA runtime asks for everything and calls little of it: so the stand-in passes every call on, whatever
/// its arguments, and only notes the first (intercepted/unknown_calls.hpp), which passes the gate as work
/// does. The same for the same address. Thread-safe; takes no memory.
[[nodiscard]] void* stand_in_for_unknown(void* address, const char* name) noexcept;

} // namespace gpu_sleep::hooks
