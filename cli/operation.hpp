// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The common part of gpu-sleep, gpu-wake and gpu-reclaim: find the processes, send the requests, print the
// results.

#pragma once

#include "cli/command_run.hpp"
#include "control/targets.hpp"

#include <vector>

namespace gpu_sleep::cli {

/// Runs the command. Prints each result on standard output as it arrives, or all together as JSON, and
/// progress and errors on standard error. Returns the exit status, unless a signal that has withdrawn the
/// requests ends the command.
[[nodiscard]] int run(CommandRun operation);

/// Asks the processes whose connection was lost, or that did not answer in time, for their state, all at
/// once: they may have ended or may have no agent any more. Does not ask those that are stopped or whose
/// outcome is unknown, which cannot answer.
void ask_again(control::Finder& finder, std::vector<control::Outcome>& outcomes);

} // namespace gpu_sleep::cli
