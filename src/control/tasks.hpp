// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Having agents put their processes to sleep, or wake them, several side by side.

#pragma once

#include "control/command.hpp"

namespace gpu_sleep::control {

/// An operation of one process.
struct Task {
    Target target;
    const protocol::Request* request = nullptr; ///< outlives the task
};

/// Settings that apply to all of several tasks.
struct Manner {
    const client::Joint* joint = nullptr; ///< they go together
    bool passes_over = false;             ///< nothing is said of one that is_passed_over()
    /// When those of a pass that are not done are withdrawn; nothing where nobody else waits for the pass.
    std::optional<Clock::time_point> end = {};
};

/// A pass that nobody follows takes no longer, whatever agents say, unless it has a time for each process.
inline constexpr Milliseconds k_limit_of_pass{900'000};

/// Carries out all, and has the driver do its part of deep sleeps. The listener hears of each as soon as it
/// has ended, of those that go together once all have; of one whose agent has not had the last word, when it
/// was asked how its process stands. The outcomes are in the order of the tasks.
[[nodiscard]] std::vector<Outcome> carry_out(Finder& finder, std::vector<Task> tasks, const Manner& manner,
                                             Listener& listener, Interruptions& interruptions);

/// Turns `answer` into the outcome of a process that was sent `request`, an operation.
[[nodiscard]] Outcome outcome_of(Finder& finder, const protocol::Request& request, Process process,
                                 client::Answer answer);

/// Asks the processes whose connection was lost, or that did not answer in time, for their state, all at
/// once: they may have ended or may have no agent any more. Does not ask those that are stopped or whose
/// outcome is unknown, which cannot answer.
void ask_again(Finder& finder, std::vector<Outcome>& outcomes);

} // namespace gpu_sleep::control
