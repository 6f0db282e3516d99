// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Listing processes that have no agent, and what the driver can do with them.

#pragma once

#include "control/targets.hpp"

#include <optional>
#include <vector>

namespace gpu_sleep::control {

/// How a process stands that has no agent: a report without tags, whose devices say what it has of them
/// (`released`); nothing if the driver knows of no use of a GPU, or cannot checkpoint. Also the next.
[[nodiscard]] std::optional<Outcome> describe_without_agent(const Process& process);

/// All that this user may put to sleep, of everybody or of `user`, but for those that are in `known`: who has
/// memory on a GPU, as NVML tells, and who was checkpointed by a command. None where either
/// library is missing.
[[nodiscard]] std::vector<Outcome> find_without_agent(const Finder& finder, std::optional<uid_t> user,
                                                      const std::vector<Outcome>& known);

} // namespace gpu_sleep::control
