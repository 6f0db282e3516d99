// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One pass of gpu-reclaim by policies: each process is judged by its own, and host memory by its budgets.

#pragma once

#include "cli/options.hpp"
#include "control/policy/pass.hpp"

namespace gpu_sleep::cli {

struct PassOptions {
    control::policy::PassRequest request;
    control::policy::Sources sources;
    OutputOptions output;
};

/// Says on standard error what is wrong with the files of policies, and has not been said before.
void tell_complaints(control::policy::Policies& policies);

/// Policies::load(), and tells the complaints, whatever comes of it. Errors: invalid_argument (a file).
[[nodiscard]] Result<control::policy::Policies> load_policies(const control::policy::Sources& sources);

/// Gives host memory back until the budgets are kept, then puts to sleep, or further down, what has been idle
/// for long enough. Says what it did, and why it cannot keep a budget. Returns the exit status.
[[nodiscard]] int run_pass(const PassOptions& options);

/// Changes nothing: says of each process which policy holds for it, and what a pass would do now. Returns the
/// exit status.
[[nodiscard]] int show_policies(const PassOptions& options);

/// The same in two lines for each process, by its pid. Says on standard error why it knows nothing of one.
/// Errors: those of load_policies().
[[nodiscard]] Result<std::map<pid_t, std::string>> describe_policies(const PassOptions& options);

} // namespace gpu_sleep::cli
