// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking all processes how they are, and deciding what becomes of each.

#pragma once

#include "control/command.hpp"
#include "control/policy/decision.hpp"
#include "control/policy/policies.hpp"
#include "control/targets.hpp"

#include <vector>

namespace gpu_sleep::control::policy {

/// A process that has said how it is, and what its policy does now.
struct Seen {
    Process process;
    model::Report report;
    Policy policy;
    Decision decision;
};

struct Look {
    std::vector<Seen> seen;
    std::vector<Outcome> failed; ///< unreached, or the policy cannot be carried out
};

/// How long a look has patience with each process.
inline constexpr Milliseconds k_patience_of_look{2'000};

/// Looks at one word, or at all; neither at a tree nor at a group. Errors: as find_all() and find_targets().
[[nodiscard]] Result<Look> look(Finder& finder, Policies& policies, const Selection& whom,
                                Milliseconds patience = k_patience_of_look);

/// Rehearses what the decisions ask for: what a process refuses becomes a decision for nothing, with its
/// reason. Changes no process.
void heed_refusals(Finder& finder, std::vector<Seen>& seen, Milliseconds patience = k_patience_of_look);

/// What each holds of host memory, and is about to add.
[[nodiscard]] std::vector<Holder> holders_of(const std::vector<Seen>& seen);

/// The processes that were seen.
[[nodiscard]] std::vector<Process> processes_of(const Look& look);

} // namespace gpu_sleep::control::policy
