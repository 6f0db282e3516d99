// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking processes what is answered at once, such as how they stand; and what became of one that was asked
// anything, with the exit status that is.

#pragma once

#include "client/client.hpp"
#include "control/find.hpp"

namespace gpu_sleep::control {

using client::Answer;

/// A process and what its agent answered.
struct Outcome {
    Process process;
    Answer answer;
    model::Operation asked = model::Operation::sleep; ///< not meaningful for a status
    bool has_waited = false;                          ///< for GPU memory, as requested
    bool by_driver = false;                           ///< the driver was asked, and not an agent
    std::optional<Bytes> gpu_bytes{};                 ///< of a sleeper: see note_gpu_use()
    Bytes unreleased = 0;                             ///< see unreleased_by()
    bool has_made_room = false;                       ///< others were asked to sleep for it, as requested
    bool nobody_can_sleep = false;                    ///< that has GPU memory which it lacks
    bool deep_asked = false;                          ///< a deep sleep was
    /// Set of a stopped process that cannot answer: so long ago it said itself what `answer` has.
    std::optional<double> stopped_report_seconds{};
};

/// Returns how much a sleep should have freed and the driver did not release: then it has failed, though all
/// of it sleeps. 0 for a pause, and for a conditional sleep that did not come about.
[[nodiscard]] Bytes unreleased_by(const protocol::Request& request, const model::Report& report) noexcept;

/// Whether the error means that the process has ended, or runs another program by now.
[[nodiscard]] bool is_gone(ErrorCode code) noexcept;

/// Whether the process has gone, or has none of the tags that were asked for. Where it was one of all, nobody
/// has named it, and it is no failure.
[[nodiscard]] bool is_passed_over(const Outcome& outcome) noexcept;

/// Whether the request was withdrawn before the process has changed.
[[nodiscard]] bool is_withdrawn(const Outcome& outcome) noexcept;

/// Removes the outcomes of processes that have ended or run another program by now; for listings without a
/// PID.
void drop_ended(std::vector<Outcome>& outcomes);

/// The exit status for one outcome: of its failure, failed_asleep where memory is unreleased, or 0.
[[nodiscard]] int exit_status_of(const Outcome& outcome) noexcept;

/// The word for the state of a process that has not answered: "stopped" or "no answer".
[[nodiscard]] const char* silence(const Outcome& outcome) noexcept;

/// The exit status for several: the worst of those that failed, and were not only withdrawn because another
/// did; or 0.
[[nodiscard]] int exit_status_of(const std::vector<Outcome>& outcomes) noexcept;

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
[[nodiscard]] client::Question question_for(Finder& finder, Target& target, const protocol::Request& request,
                                            const client::AnswerTimeout::Limits& limits);
client::Question question_for(Finder&, Target&, protocol::Request&&,
                              const client::AnswerTimeout::Limits&) = delete;

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
