// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whom a request is for, as a person names them.

#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace gpu_sleep::control {

struct Selection {
    /// Pids and names. None, where no group is named: all processes with an agent that may be asked. Nothing
    /// is said then of one that is_passed_over().
    std::vector<std::string> words{};
    bool tree = false;           ///< the word and its descendants
    std::string group{};         ///< in place of words; may be empty
    bool takes_several = false;  ///< a program's name is that of all that run it
    std::optional<uid_t> user{}; ///< only processes of this user

    /// Whether they go together.
    [[nodiscard]] bool is_joint() const noexcept { return tree || !group.empty(); }
    /// Whether nobody in particular is named.
    [[nodiscard]] bool is_for_all() const noexcept { return words.empty() && group.empty(); }
};

} // namespace gpu_sleep::control
