// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The common part of commands whose requests are answered at once: ask the processes, tell what each
// answered.

#pragma once

#include "cli/options.hpp"
#include "cli/targets.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gpu_sleep::cli {

/// The outcomes of `request`, one for each process that `target` and `user` select. Errors: those of
/// find_targets().
[[nodiscard]] Result<std::vector<Outcome>> ask_targets(Finder& finder, const std::string& target,
                                                       std::optional<uid_t> user,
                                                       const protocol::Request& request,
                                                       Milliseconds timeout);

/// Says on standard error why nobody was asked, and on standard output, too, as JSON. Returns the exit
/// status.
int tell_failure(const std::string& program, const OutputOptions& output, const Error& error);

/// What is said of a process that has answered with a report.
using Words = std::function<std::string(const Process&, const model::Report&)>;

/// Says what became of each, or all together as JSON; failures on standard error. Returns the exit status.
int tell_all(const std::string& program, const OutputOptions& output, const std::vector<Outcome>& outcomes,
             const Words& words);

} // namespace gpu_sleep::cli
