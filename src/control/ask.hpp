// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking processes what is answered at once, such as how they stand.

#pragma once

#include "control/find.hpp"
#include "control/outcome.hpp"
#include "peers/client.hpp"

#include <vector>

namespace gpu_sleep::control {

/// A process and a connection to its agent.
struct Target {
    Process process;
    UniqueFd socket; ///< good for one request; where there is none, one is made for it
};

/// The selected processes, ordered by pid.
struct Targets {
    std::vector<Target> reached;
    std::vector<Outcome> unreached; ///< selected, or possibly so, but not reachable; the answers say why

    [[nodiscard]] bool is_empty() const noexcept { return reached.empty() && unreached.empty(); }
    /// Whether the process is among them.
    [[nodiscard]] bool contains(const Process& process) const noexcept;
};

/// A question to `target`, whose connection it takes. All three outlive it.
[[nodiscard]] peers::Question question_for(Finder& finder, Target& target, const protocol::Request& request,
                                           const peers::AnswerTimeout::Limits& limits);
peers::Question question_for(Finder&, Target&, protocol::Request&&,
                             const peers::AnswerTimeout::Limits&) = delete;

/// Asks each target by `request`, which is answered at once; the outcomes are in the same order, those that
/// were not reached last. no_process stands for one that has ended meanwhile, no_agent for one that runs
/// another program now.
[[nodiscard]] std::vector<Outcome> ask_each(Finder& finder, Targets targets, const protocol::Request& request,
                                            Milliseconds timeout);

/// If a process is stopped and does not answer, puts in place of the answer what it has published of itself,
/// if that is there and does not contradict what else is seen of it.
void use_published(Finder& finder, Outcome& outcome);

/// `failure`, and if the process is stopped how it was before, and since when, as far as it has said.
[[nodiscard]] Error with_last_state(Finder& finder, const Process& process, Error failure);

} // namespace gpu_sleep::control
