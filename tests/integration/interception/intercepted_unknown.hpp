// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Calls of the driver that no cuda.h declares: those of a driver that is newer than the agent.

#pragma once

#include "intercepted_memory.hpp"

namespace gpu_sleep::test {

/// Looks cuFutureSubmit up, as a "symbol" or by the driver's own look-up. "same" if that found it where it
/// was found before. Errors: internal.
[[nodiscard]] Result<std::string> look_up_unknown_call(const std::string& way);

/// Sets every byte of `memory` to 36 by it; its arguments come by registers and by the stack. Errors:
/// driver_failed.
[[nodiscard]] Result<void> submit_by_unknown_call(const Memory& memory, CUstream stream);

/// What a later version of a function that only asks gives.
[[nodiscard]] int version_by_unknown_call();

} // namespace gpu_sleep::test
