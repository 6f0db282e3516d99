// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a policy does to a process, given what its agent says of it. Pure functions.

#pragma once

#include "control/policy/policy.hpp"
#include "model/report.hpp"
#include "model/request.hpp"

#include <optional>
#include <string>

namespace gpu_sleep::control::policy {

/// Whether all of it sleeps, and host memory holds contents of it.
[[nodiscard]] bool sleeps_in_host_memory(const model::Report& report) noexcept;

/// How far down the process is: awake if any of it is, otherwise where the nearest of its contents lie.
[[nodiscard]] Depth depth_of(const model::Report& report) noexcept;

/// How long the process has had no use for the GPU: idle or asleep. Nothing where that is not known. 0 while
/// work waits for it to wake.
[[nodiscard]] std::optional<double> unused_seconds(const model::Report& report) noexcept;

struct Decision {
    std::optional<model::IdleSleepRequest> request; ///< what is to be asked of the process
    std::string reason{};                           ///< why nothing is
};

/// What `policy` does now. The agent decides last: a request is carried out only if the process is still as
/// idle. Errors: invalid_argument (the policy cannot be carried out: why).
[[nodiscard]] Result<Decision> decide(const Policy& policy, const model::Report& report);

/// Has a sleep that makes room, and not the policy, heed what the policy says of it: after how long awake,
/// and where contents go by the first step of the ladder. What the request says itself stays.
void heed(const Policy& policy, const model::Report& report, model::SleepRequest& request);

/// Moves what sleeps to files beneath `directory`, whenever it went to sleep, unless it wakes meanwhile.
[[nodiscard]] model::IdleSleepRequest request_to_move(const std::string& directory);

} // namespace gpu_sleep::control::policy
