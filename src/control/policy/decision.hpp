// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Decides what happens to each process under its policy, and which host memory is given back when the budgets
// for it are exceeded. Pure functions.

#pragma once

#include "control/policy/policy.hpp"
#include "model/report.hpp"
#include "model/request.hpp"

#include <sys/types.h>

namespace gpu_sleep::control::policy {

/// Whether all of it sleeps, and host memory holds contents of it.
[[nodiscard]] bool sleeps_in_host_memory(const model::Report& report) noexcept;

/// How far down the process is: awake if any of it is, otherwise where the nearest of its contents lie.
[[nodiscard]] Tier tier_of(const model::Report& report) noexcept;

/// How long the process has had no use for the GPU: idle or asleep. Nothing where that is not known. 0 while
/// work waits for it to wake.
[[nodiscard]] std::optional<double> unused_seconds(const model::Report& report) noexcept;

struct Decision {
    std::optional<model::IdleSleepRequest> request; ///< what is to be asked of the process
    std::string reason{};                           ///< why nothing is
};

/// Decides what to do now by `policy`. The agent decides last: a request is carried out only if the process
/// is still as idle. Errors: invalid_argument (the policy cannot be carried out: why).
[[nodiscard]] Result<Decision> decide(const Policy& policy, const model::Report& report);

/// Has a sleep that makes room, and not the policy, heed what the policy says of it: after how long awake,
/// and where contents go by the first step of the ladder. What the request says itself stays.
void heed(const Policy& policy, const model::Report& report, model::SleepRequest& request);

/// Moves what sleeps to files beneath `directory`, whenever it went to sleep, unless it wakes meanwhile.
[[nodiscard]] model::IdleSleepRequest request_to_move(const std::string& directory);

/// How much host memory a process uses.
struct Holder {
    uid_t user = 0;
    Bytes held = 0;            ///< for contents, all of it
    Bytes retained = 0;        ///< of that, contents of what is awake: it can go at any time
    Bytes incoming = 0;        ///< that a sleep of the same pass is about to use, retained memory first
    double unused_seconds = 0; ///< asleep or idle
    bool can_move = false;     ///< asleep, and there is a directory for its contents
};

struct Budgets {
    std::optional<Bytes> machine; ///< of all users together
    std::map<uid_t, Bytes> users; ///< of all processes of one
};

/// The plan for host memory. A process is named by its place among the holders.
struct HostPlan {
    std::vector<std::size_t> release; ///< give back what they retain
    std::vector<std::size_t> move;    ///< move what they keep in host memory to files
    struct Excess {
        std::optional<uid_t> user; ///< whose budget it is; unset: the machine's
        Bytes budget = 0;
        Bytes held = 0; ///< once all of the plan is done
    };
    std::vector<Excess> left;   ///< budgets that stay exceeded, whatever comes
    std::vector<bool> has_room; ///< of each holder: find_room() once the rest of the plan is done
};

/// Retained memory goes first, the largest of it first; then what has slept for longest moves to files. No
/// more than the budgets ask for, with what is incoming: first each user's, then the machine's. A process
/// for whose sleep there is no room then does not sleep in host memory, and gives back what it retains.
[[nodiscard]] HostPlan plan_host_memory(const std::vector<Holder>& holders, const Budgets& budgets);

/// Whether there is room within all budgets for what each holder is about to add; the longest unused first.
[[nodiscard]] std::vector<bool> find_room(const std::vector<Holder>& holders, const Budgets& budgets);

} // namespace gpu_sleep::control::policy
