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
    protocol::Request request;
    Milliseconds limit{0}; ///< the time that the request itself allows
    OutputOptions output;
};

/// Runs it to the end: results on standard output, progress and errors on standard error. Returns the exit
/// status.
[[nodiscard]] int run(const CommandRun& operation);

/// Of processes whose connection was lost, or that did not answer in time, finds out how they are: ended,
/// without an agent by now, or in which state. Asks all at once.
void settle(Finder& finder, std::vector<Outcome>& outcomes);

} // namespace gpu_sleep::cli
