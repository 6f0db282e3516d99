// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A pass over processes that have no agent: the driver puts to sleep what NVML has not seen at work.

#pragma once

#include "cli/driver_engine.hpp"
#include "cli/interruptions.hpp"
#include "cli/targets.hpp"

#include <optional>
#include <vector>

namespace gpu_sleep::cli {

struct DriverPass {
    Milliseconds idle{0};          ///< for so long nothing was seen of a process that is put to sleep
    std::optional<Process> target; ///< nobody else
    std::optional<uid_t> user;     ///< only processes of this user
    DriverRequest request;
};

/// The processes without an agent that this user may put to sleep and that are awake: those that have been
/// idle for long enough are put to sleep, and do not wake by themselves; the others' reports say why not.
/// Errors: no_driver, driver_failed (NVML does not say who works), io_failed, timed_out (IdleHistory).
[[nodiscard]] Result<std::vector<Outcome>> reclaim_by_driver(Finder& finder, const DriverPass& pass,
                                                             Interruptions& interruptions);

} // namespace gpu_sleep::cli
