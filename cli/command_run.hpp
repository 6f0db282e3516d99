// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Running gpu-sleep, gpu-wake or gpu-reclaim: control does it, and the results are printed.

#pragma once

#include "cli/options.hpp"
#include "control/dispatch.hpp"

#include <functional>
#include <string>
#include <vector>

namespace gpu_sleep::cli {

/// Carries `command` out. Prints each result on standard output as it arrives, or all together as JSON, and
/// progress and errors on standard error. Returns the exit status, unless a signal that has withdrawn the
/// requests ends the command. `accepts_losses`: a sleep drops what is not declared refillable without a word
/// before.
[[nodiscard]] int run(const std::string& program, control::Command command, const OutputOptions& output,
                      bool accepts_losses = false);

/// What is said of a process that has answered with a report.
using Words = std::function<std::string(const control::Process&, const model::Report&)>;

/// Says what became of each, or all together as JSON; failures on standard error. Returns the exit status.
int tell_all(const std::string& program, const OutputOptions& output,
             const std::vector<control::Outcome>& outcomes, const Words& words);

} // namespace gpu_sleep::cli
