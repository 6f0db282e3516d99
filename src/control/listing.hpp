// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How processes stand, those among them that have no agent, and why they do not sleep.

#pragma once

#include "control/targets.hpp"

#include <set>

namespace gpu_sleep::control {

/// All without an agent that this user may put to sleep, of everybody or of `user`, but for those in `known`.
/// None where a library of the driver is missing.
[[nodiscard]] std::vector<Outcome> find_without_agent(const Finder& finder, std::optional<uid_t> user,
                                                      const std::set<pid_t>& known);

/// How the processes stand that `target`, a pid or a name, stands for; if it is empty, all that this user may
/// put to sleep, of everybody or of `user`. Of one without an agent, a report without tags, whose devices say
/// what it has of them (`released`): all are known that have memory on a GPU, as NVML tells, or were
/// checkpointed by a command. Errors: those of find_all() and find_targets().
[[nodiscard]] Result<std::vector<Outcome>> list(const std::string& target, std::optional<uid_t> user,
                                                Milliseconds timeout);

/// Asks the processes that `target` stands for what `request` would free if nothing prevented it; the
/// refusals in the reports are what does now, and their first notes. Changes nothing. Errors: those of
/// find_targets().
[[nodiscard]] Result<std::vector<Outcome>> rehearse(const std::string& target, std::optional<uid_t> user,
                                                    model::IdleSleepRequest request, Milliseconds patience);

} // namespace gpu_sleep::control
