// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Receiving SIGINT, SIGTERM and SIGHUP while the command waits for agents.

#pragma once

#include "base/fd.hpp"

namespace gpu_sleep::cli {

/// While it lives, SIGINT, SIGTERM and SIGHUP do not end the command, but can be taken one by one;
/// ignored ones stay ignored. If that fails, they end the command as usual. Made before any other thread is.
class Interruptions {
public:
    Interruptions() noexcept;
    Interruptions(const Interruptions&) = delete;
    Interruptions& operator=(const Interruptions&) = delete;
    ~Interruptions();

    /// Readable when a signal has arrived; negative if none can be taken.
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    void take() noexcept;
    /// Whether one was taken, or has arrived, and is taken now.
    [[nodiscard]] bool has_come() noexcept;
    /// Ends the command by the first signal that was taken; returns if none was.
    void end_by_first() noexcept;

private:
    void restore() noexcept;

    UniqueFd fd_;
    int first_ = 0; ///< signal; 0 before one was taken
};

} // namespace gpu_sleep::cli
