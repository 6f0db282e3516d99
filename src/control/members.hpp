// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Selecting processes that go together: trees and groups.

#pragma once

#include "control/targets.hpp"

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::control {

/// `text`, as for find_targets(), and all descendants: of these, those that have an agent. None is hidden by
/// a parent that has one, or is left out because it may not be asked. At least one of the lists is not empty.
/// Errors: as for find_targets().
[[nodiscard]] Result<Targets> find_tree(Finder& finder, std::string_view text, const Search& search = {});

/// The processes of a group (Report.group); of those that do not answer, their environment says it. Errors:
/// no_process, ambiguous_name, io_failed.
[[nodiscard]] Result<Targets> find_group(Finder& finder, std::string_view group, const Search& search = {});

/// Which processes a joint request is for.
struct Membership {
    std::vector<pid_t> roots; ///< of trees
    std::string group;        ///< empty where there are roots
    std::optional<uid_t> user = {};
};
/// A process with an agent that belongs to them and is none of `known`, if there is one. Asks no agent.
/// Errors: io_failed.
[[nodiscard]] Result<std::optional<Process>> find_newcomer(const Finder& finder, const Membership& membership,
                                                           const std::vector<Process>& known);

} // namespace gpu_sleep::control
