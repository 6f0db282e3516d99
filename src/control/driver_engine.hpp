// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sleeping and waking by the driver's own checkpoint, for processes that have no agent: all or nothing, to
// the process's own host memory, without tags, levels or files.

#pragma once

#include "control/command.hpp"
#include "driver/checkpoint.hpp"

#include <future>

namespace gpu_sleep::control {

/// For a command that takes the driver's steps one by one, as it is told.
using driver::Checkpoint;

/// Finds how `process` stands by asking the driver, and completes what is asked from there, also what a
/// command before left half done. The answer is a report, or a failure with how the process stands
/// afterwards. The request's `timeout` is for the lock, which waits for GPU work, and for other commands.
/// `interruptions` are obeyed between the steps, and undo what was done of a sleep.
[[nodiscard]] Answer run_by_driver(const Process& process, const Command& command,
                                   Interruptions& interruptions);

/// The driver's part of a deep sleep: opens the driver, which takes a while, on a thread of its own.
class DeepLocker {
public:
    DeepLocker();
    /// Lock `process`, whose agent waits for that, for at most `timeout`; then checkpoint it, or leave it
    /// running. They need neither this nor `process` any more, and are for any thread. Errors: driver_failed,
    /// not_permitted, no_driver, context_lost: it runs, unless the words say otherwise.
    [[nodiscard]] std::vector<std::function<Result<void>()>> steps(const Process& process,
                                                                   Milliseconds timeout) const;

private:
    std::shared_future<Result<driver::Checkpoint>> loaded_;
};

/// How it stands; for a command that does not know whether the driver has to be asked at all. Errors: as
/// driver::Checkpoint.
[[nodiscard]] Result<checkpoint::State> state_by_driver(const Process& process);

} // namespace gpu_sleep::control
