// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One pass by policies: all processes are asked how they are, each is judged by its own policy and host
// memory by its budgets, and what was decided is carried out.

#pragma once

#include "control/policy/policies.hpp"
#include "control/tasks.hpp"

#include <set>

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
    Budgets budgets;             ///< of the machine, and of the users of what was seen
    std::vector<Holder> others;  ///< processes that were not selected, if there are budgets
};

/// How long a look has patience with each process.
inline constexpr Milliseconds k_patience_of_look{2'000};

/// Looks at one word, or at all; neither at a tree nor at a group. Errors: as find_all() and find_targets().
[[nodiscard]] Result<Look> look(Finder& finder, Policies& policies, const Selection& whom,
                                Milliseconds patience);

/// Rehearses what the decisions ask for: what a process refuses becomes a decision for nothing, with its
/// reason. Changes no process.
void heed_refusals(Finder& finder, std::vector<Seen>& seen, Milliseconds patience);

/// Where the budgets leave no room in host memory, the decision becomes one for files, or for nothing.
/// `has_room`: of each process.
void heed_room(std::vector<Seen>& seen, const std::vector<bool>& has_room);

/// Returns how much host memory each process has, and its sleep is about to use: first those that were seen.
[[nodiscard]] std::vector<Holder> holders_of(const Look& look);

struct PassRequest {
    Selection whom; ///< see look()
    bool dry_run = false;
    std::optional<Milliseconds> timeout;  ///< for each process
    Milliseconds limit = k_limit_of_pass; ///< for all, unless each has a timeout
    /// Told of the look, before anybody is asked for anything. Returns the pids that are left alone.
    std::function<std::set<pid_t>(const std::vector<Seen>&)> spare{};
};

/// The result of a pass.
struct Passed {
    std::vector<Outcome>
        outcomes;              ///< where nothing was asked of a process, a report whose first note says why
    std::vector<Error> errors; ///< that are no process's: budgets that cannot be kept
    std::optional<Error> failure{}; ///< of the look() at what giving back has left: nobody was asked to sleep
};

/// Gives host memory back until the budgets are kept, then puts to sleep, or further down, what has been idle
/// for long enough. Cannot be interrupted: it takes until all who are asked have answered, or have timed out,
/// or the limit is over. Giving back has a quarter of that, and then others sleep. Errors: those of look(),
/// and nobody was asked for anything.
[[nodiscard]] Result<Passed> pass(const PassRequest& request, Policies& policies);

} // namespace gpu_sleep::control::policy
