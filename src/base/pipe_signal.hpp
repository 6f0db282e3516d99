// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Writing to a pipe that may have no reader.

#pragma once

#include <cerrno>
#include <csignal>
#include <ctime>

namespace gpu_sleep {

/// Keeps the SIGPIPE of a write of this thread's from the program. What the program does with SIGPIPE stays
/// as it is, and so does one that was pending before.
class PipeSignalHold {
public:
    PipeSignalHold() noexcept {
        sigset_t pending;
        sigemptyset(&pending);
        sigpending(&pending);
        was_pending_ = sigismember(&pending, SIGPIPE) == 1;
        sigemptyset(&pipe_);
        sigaddset(&pipe_, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    }
    PipeSignalHold(const PipeSignalHold&) = delete;
    PipeSignalHold& operator=(const PipeSignalHold&) = delete;
    ~PipeSignalHold() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

    /// Takes the signal back that the write has raised. Changes errno.
    void take_back() const noexcept {
        constexpr timespec k_at_once{};
        while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &k_at_once) < 0 && errno == EINTR) {
        }
    }

private:
    sigset_t pipe_{};
    sigset_t before_{};
    bool was_pending_ = false;
};

} // namespace gpu_sleep
