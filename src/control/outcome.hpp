// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What became of a process that was asked, and the exit status that is.

#pragma once

#include "control/process_info.hpp"
#include "peers/conversation.hpp"

#include <optional>
#include <vector>

namespace gpu_sleep::control {

using peers::Answer;

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
    /// Set of a stopped process that cannot answer: so long ago it said itself what `answer` has.
    std::optional<double> stopped_report_seconds{};
};

/// What a sleep was to free of the GPU, and the driver did not release: it has failed, and all sleeps. 0 of a
/// pause, and of a sleep that was only to come under conditions and did not.
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

/// What stands for the state of one that has not answered: "stopped" or "no answer".
[[nodiscard]] const char* silence(const Outcome& outcome) noexcept;

/// The exit status for several: the worst of those that failed, and were not only withdrawn because another
/// did; or 0.
[[nodiscard]] int exit_status_of(const std::vector<Outcome>& outcomes) noexcept;

} // namespace gpu_sleep::control
