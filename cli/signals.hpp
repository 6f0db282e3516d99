// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Receiving SIGINT, SIGTERM and SIGHUP while the command waits for agents, and ending it afterwards.

#pragma once

#include "control/command.hpp"

namespace gpu_sleep::cli {

/// While it lives, SIGINT, SIGTERM and SIGHUP do not end the command, but can be taken one by one;
/// ignored ones stay ignored. If that fails, they end the command as usual. Made before any other thread is.
class Signals : public control::Interruptions {
public:
    Signals() noexcept;
    ~Signals() override;

    bool has_come() noexcept override;
    /// Ends the command by the first signal that was taken; returns if none was.
    void end_by_first() noexcept;

private:
    void restore() noexcept;

    int first_ = 0; ///< signal; 0 before one was taken
};

/// Returns `status`, with which the command is to end; ends it here where a call of the driver was given up
/// and goes on, for the driver's exit handlers would meet it.
[[nodiscard]] int end_beside_driver(int status) noexcept;

} // namespace gpu_sleep::cli
