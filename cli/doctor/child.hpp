// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking what may hang or crash, such as a broken driver, in a child process and within a time limit.

#pragma once

#include "base/error.hpp"
#include "base/units.hpp"

#include <functional>
#include <string>

namespace gpu_sleep::cli::doctor {

/// What `ask` gives in a child of this process, which ends with it. The child is killed at the limit; one
/// that the kernel does not let go is left behind. Call it while the process has no other thread. Errors:
/// those of `ask`; timed_out; driver_failed (the child has crashed); io_failed, out_of_threads (there is no
/// child).
[[nodiscard]] Result<std::string> run_in_child(Milliseconds limit,
                                               const std::function<Result<std::string>()>& ask);

} // namespace gpu_sleep::cli::doctor
