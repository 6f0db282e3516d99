// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What is particular to a command for processes that go together (--tree, --group): the last look at who they
// are, and what is said of all.

#pragma once

#include "cli/command_run.hpp"
#include "control/targets.hpp"
#include "peers/client.hpp"

#include <string>
#include <vector>

namespace gpu_sleep::cli {

/// What holds for all. It refers to its arguments.
[[nodiscard]] peers::Joint joint_of(const CommandRun& operation, const std::vector<control::Target>& targets,
                                    const control::Finder& finder);

/// Nobody is asked, for one of those that go together cannot be: the outcomes of all.
[[nodiscard]] std::vector<control::Outcome> refuse_all(control::Targets found, model::Operation asked);

/// A line that says what has become of all that go together. `sleep` is what was asked, or null for a wake.
[[nodiscard]] std::string render_together(const std::vector<control::Outcome>& outcomes,
                                          const model::SleepRequest* sleep);

} // namespace gpu_sleep::cli
