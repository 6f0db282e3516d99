// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Threads inside somebody else's process.

#pragma once

#include "base/result.hpp"

#include <csignal>
#include <functional>
#include <thread>

namespace gpu_sleep {

/// While it exists, the calling thread takes no signals but those that it causes itself, such as SIGSEGV.
class SignalsBlocked {
public:
    SignalsBlocked() noexcept;
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_{};
};

/// Starts a thread that blocks all signals, because they belong to the program's own threads, except those
/// that a thread causes itself, such as SIGSEGV. The thread cannot be cancelled. `name` has at most 15
/// characters. `body` must not throw. Errors: out_of_threads (the system gives none).
[[nodiscard]] Result<std::thread> start_quiet_thread(const char* name, std::function<void()> body);

} // namespace gpu_sleep
