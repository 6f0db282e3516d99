// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The options by which gpu-reclaim says which policies hold.

#pragma once

#include "cli/options.hpp"
#include "control/policy/policies.hpp"

#include <optional>
#include <string>
#include <vector>

namespace gpu_sleep::cli {

/// What was typed.
struct TypedPolicy {
    std::vector<std::string> idle;
    std::string config;
    std::optional<Milliseconds> otherwise;
    std::optional<Bytes> host_budget;

    /// Whether it is one time for all processes, which needs no policies.
    [[nodiscard]] bool is_plain() const {
        return idle.size() == 1 && idle.front().find(':') == std::string::npos && !host_budget;
    }
};

/// --idle, --config, and the former --default-idle and --host-budget.
[[nodiscard]] usage::Group policy_rows(TypedPolicy& typed);

/// Puts what was typed into `sources`. Returns what is wrong with it, or nothing.
[[nodiscard]] std::string read_policy(const TypedPolicy& typed, control::policy::Sources& sources);

/// Puts what was typed of a directory into `sources`. Returns which option is for a plain time alone, or
/// nothing.
[[nodiscard]] std::string read_rest(const model::SleepRequest& request, const TypedStores& stores,
                                    control::policy::Sources& sources);

} // namespace gpu_sleep::cli
