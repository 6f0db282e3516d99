// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Signals that ask this command to end, taken one by one while it waits for agents.

#pragma once

#include "base/fd.hpp"

namespace gpu_sleep::cli {

/// While it lives, SIGINT, SIGTERM and SIGHUP do not end the command, but can be taken; those that are
/// ignored stay so. Where that cannot be had, they end it as ever. For a command with one thread.
class Interruptions {
public:
    Interruptions() noexcept;
    Interruptions(const Interruptions&) = delete;
    Interruptions& operator=(const Interruptions&) = delete;
    ~Interruptions();

    /// Readable when one has come; negative where none can be taken.
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    void take() noexcept;
    /// Ends the command by the first that was taken, as if nobody had; returns if none was.
    void end_by_first() noexcept;

private:
    void restore() noexcept;

    UniqueFd fd_;
    int first_ = 0; ///< signal; 0 before one was taken
};

} // namespace gpu_sleep::cli
