// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Threads inside somebody else's process.

#pragma once

#include "base/result.hpp"

#include <functional>
#include <thread>

namespace gpu_sleep {

/// Starts a thread with all signals blocked, since they belong to the program's own threads, but for those
/// that a thread brings about itself, such as SIGSEGV. It is not cancelled either. `name` has at most 15
/// characters. `body` must not throw. Errors: out_of_threads (the system gives none).
[[nodiscard]] Result<std::thread> start_quiet_thread(const char* name, std::function<void()> body);

} // namespace gpu_sleep
