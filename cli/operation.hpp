// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The common part of gpu-sleep and gpu-wake: find the processes, send the requests, print the results.

#pragma once

#include "cli/options.hpp"
#include "cli/targets.hpp"

#include <optional>
#include <string>

namespace gpu_sleep::cli {

/// One run of a command that changes processes.
struct CommandRun {
    std::string program;
    std::string target;
    std::optional<uid_t> user; ///< select only processes of this user
    protocol::Request request;
    OutputOptions output;
};

/// Runs the command. Prints each result on standard output as it arrives, or all together as JSON, and
/// progress and errors on standard error. Returns the exit status, unless a signal that has withdrawn the
/// requests ends the command.
[[nodiscard]] int run(const CommandRun& operation);

/// Asks the processes whose connection was lost, or that did not answer in time, for their state, all at
/// once: they may have ended or may have no agent any more. Does not ask those that are stopped or whose
/// outcome is unknown, which cannot answer.
void ask_again(Finder& finder, std::vector<Outcome>& outcomes);

} // namespace gpu_sleep::cli
