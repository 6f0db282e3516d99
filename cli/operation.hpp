// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What gpu-sleep and gpu-wake have in common: find the processes, ask them, tell the result.

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
    std::optional<uid_t> user; ///< whose processes alone are meant
    protocol::Request request;
    OutputOptions output;
};

/// Runs it to the end: results on standard output as they come, in JSON all together, progress and errors on
/// standard error. Returns the exit status; or a signal that has withdrawn a request ends the command.
[[nodiscard]] int run(const CommandRun& operation);

/// Of processes whose connection was lost, or that did not answer in time, finds out how they are: ended,
/// without an agent by now, or in which state. Asks all at once, but for those that are stopped, or whose
/// outcome is unknown: they could not say.
void ask_again(Finder& finder, std::vector<Outcome>& outcomes);

} // namespace gpu_sleep::cli
