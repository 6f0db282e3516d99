// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The common part of commands whose requests are answered at once: ask the processes, tell what each
// answered. And before contents are dropped that the program may need: ask whoever sits at a terminal, tell a
// script.

#pragma once

#include "cli/options.hpp"
#include "control/targets.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gpu_sleep::cli {

/// The outcomes of `request`, one for each process that `target` and `user` select. Errors: those of
/// find_targets().
[[nodiscard]] Result<std::vector<control::Outcome>>
ask_targets(control::Finder& finder, const std::string& target, std::optional<uid_t> user,
            const protocol::Request& request, Milliseconds timeout);

/// What is said of a process that has answered with a report.
using Words = std::function<std::string(const control::Process&, const model::Report&)>;

/// Says what became of each, or all together as JSON; failures on standard error. Returns the exit status.
int tell_all(const std::string& program, const OutputOptions& output,
             const std::vector<control::Outcome>& outcomes, const Words& words);

/// A sentence for each of `targets` of which `request` would drop contents that the program has not declared
/// refillable. Rehearses the request, over connections of its own; who does not answer has none.
[[nodiscard]] std::vector<std::string> losses_of(const model::SleepRequest& request, control::Finder& finder,
                                                 const std::vector<control::Target>& targets);

/// Says them on standard error. At a terminal asks whether to go on; returns the answer, elsewhere true.
[[nodiscard]] bool accepts(const std::string& program, const std::vector<std::string>& losses, bool quiet);

} // namespace gpu_sleep::cli
