// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Running what a command line asks for, from the request to the exit status; signals while it waits.

#pragma once

#include "cli/options.hpp"
#include "control/dispatch.hpp"
#include "control/need.hpp"

namespace gpu_sleep::cli {

/// Carries `command` out. Prints each result on standard output as it arrives, or all together as JSON, and
/// progress and errors on standard error. Returns the exit status, unless a signal that has withdrawn the
/// requests ends the command. `accepts_losses`: a sleep drops what is not declared refillable without a word
/// before.
[[nodiscard]] int run(const std::string& program, control::Command command, const OutputOptions& output,
                      bool accepts_losses = false);

/// "12 s": at least a second, also where less is left.
[[nodiscard]] std::string seconds_until(Clock::time_point until);

/// What is said of a process that has answered with a report.
using Words = std::function<std::string(const control::Process&, const model::Report&)>;

/// Says what became of each, or all together as JSON; failures on standard error. Returns the exit status.
int tell_all(const std::string& program, const OutputOptions& output,
             const std::vector<control::Outcome>& outcomes, const Words& words);

/// Sends `request`, which changes how a process sleeps and wakes nobody, to those that `whom` selects, and
/// says what became of each, as tell_all().
[[nodiscard]] int tell_selected(const std::string& program, const control::Selection& whom,
                                const protocol::Request& request, const OutputOptions& output,
                                const Words& words);

/// While it lives, SIGINT, SIGTERM and SIGHUP do not end the command, but can be taken one by one;
/// ignored ones stay ignored. If that fails, they end the command as usual. Made before any other thread is.
class Signals : public control::Interruptions {
public:
    Signals() noexcept;
    ~Signals() override { restore(); }

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

// ---- Room on GPUs that gpu-reclaim --need makes, and gpu-run --need before its command starts

/// Puts processes to sleep, and says which, or why not enough can be. Returns the exit status.
[[nodiscard]] int run_need(control::Need need, const OutputOptions& output);

/// `standard`: what holds without it.
[[nodiscard]] usage::Row wait_row(std::optional<Milliseconds>& wait, std::string_view standard);

/// The same before a command starts, on each GPU that it will see by CUDA_VISIBLE_DEVICES and
/// CUDA_DEVICE_ORDER. Speaks on standard error, as `program`. Returns the exit status: 0 if each of them has
/// so much free; otherwise nobody was put to sleep, unless somebody else took the room meanwhile. `whom`: the
/// command's name, for the history. Tries for as long as `wait`; unset: for up to half a minute if processes
/// only have not been awake for long enough.
[[nodiscard]] int make_room_for_command(const std::string& program, const std::string& whom, Bytes bytes,
                                        Milliseconds min_awake, std::optional<Milliseconds> wait);

} // namespace gpu_sleep::cli
