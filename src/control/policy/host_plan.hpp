// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which host memory is given back when the budgets for it are exceeded. A pure function.

#pragma once

#include "base/units.hpp"

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

namespace gpu_sleep::control::policy {

/// What a process holds of host memory.
struct Holder {
    uid_t user = 0;
    Bytes held = 0;            ///< for contents, all of it
    Bytes retained = 0;        ///< of that, contents of what is awake: it can go at any time
    Bytes incoming = 0;        ///< that the same pass is about to add
    double unused_seconds = 0; ///< asleep or idle
    bool can_move = false;     ///< asleep, and there is a directory for its contents
};

struct Budgets {
    std::optional<Bytes> machine; ///< of all users together
    std::map<uid_t, Bytes> users; ///< of all processes of one
};

/// What is done to the processes, by their places among the holders.
struct HostPlan {
    std::vector<std::size_t> release; ///< give back what they retain
    std::vector<std::size_t> move;    ///< move what they keep in host memory to files
    struct Excess {
        std::optional<uid_t> user; ///< whose budget it is; unset: the machine's
        Bytes budget = 0;
        Bytes held = 0; ///< once all of the plan is done
    };
    std::vector<Excess> left; ///< budgets that stay exceeded, whatever comes
};

/// Retained memory goes first, the largest of it first; then what has slept for longest moves to files. No
/// more than the budgets ask for, with what is incoming: first each user's, then the machine's. What finds no
/// room then does not come: find_room().
[[nodiscard]] HostPlan plan_host_memory(const std::vector<Holder>& holders, const Budgets& budgets);

/// Whether there is room within all budgets for what each holder is about to add; the longest unused first.
[[nodiscard]] std::vector<bool> find_room(const std::vector<Holder>& holders, const Budgets& budgets);

} // namespace gpu_sleep::control::policy
