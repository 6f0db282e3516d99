// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whether a device has room for what is to wake.

#pragma once

#include "driver/api.hpp"
#include "driver/context.hpp"
#include "sleep/plan.hpp"

namespace gpu_sleep::sleep {

/// Errors: out_of_device_memory, if waking `backings` on `device` takes more than is free.
[[nodiscard]] Result<void> check_free_memory(const std::vector<ledger::Backing*>& backings, int device,
                                             const driver::MemoryInfo& memory);

/// The same for every device of `plan`, before anything is done. A device that the program has given back is
/// passed over: to ask it would make a new context. Errors: the same; driver_failed, context_lost.
[[nodiscard]] Result<void> check_free_memory(const driver::Api& api, const WakePlan& plan);

} // namespace gpu_sleep::sleep
