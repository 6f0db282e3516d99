// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Entry points of libcuda that this build does not know: of a newer driver, or such as its cuda.h lacked.

#pragma once

#include <string>
#include <vector>

namespace gpu_sleep::agent::intercepted {

/// A function to give the program in place of the unknown one at `address`, which it asked for as `name`. The
/// CUDA runtime asks for everything and calls little of it: so the stand-in passes every call on, whatever
/// its arguments, and only notes the first, which passes the gate as work does. The same for the same
/// address. Thread-safe; takes no memory.
[[nodiscard]] void* stand_in_for_unknown(void* address, const char* name) noexcept;

/// The names of those that were called, each of which may have given the GPU work or taken memory unseen.
/// Thread-safe.
[[nodiscard]] std::vector<std::string> called_unknown();

} // namespace gpu_sleep::agent::intercepted
