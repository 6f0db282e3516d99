// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One pass by policies: each process is judged by its own, and host memory by its budgets.

#pragma once

#include "control/policy/look.hpp"
#include "control/policy/policies.hpp"
#include "control/tasks.hpp"

#include <optional>
#include <vector>

namespace gpu_sleep::control::policy {

struct PassRequest {
    Selection whom; ///< see look()
    bool dry_run = false;
    std::optional<Milliseconds> timeout;  ///< for each process
    Milliseconds limit = k_limit_of_pass; ///< for all, unless each has a timeout
};

/// What a pass came to.
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
