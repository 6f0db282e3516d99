// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Waiting for the work in contexts, with a limit.

#pragma once

#include "base/units.hpp"
#include "driver/context.hpp"

#include <functional>
#include <vector>

namespace gpu_sleep::driver {

/// How long drain() waits, and whether it should go on.
struct DrainLimits {
    Clock::time_point captures;                             ///< for captures that can be seen to end
    Clock::time_point work;                                 ///< for submitted work to end
    std::function<bool()> keep_going = [] { return true; }; ///< asked between looks
};

/// Waits until all work submitted to `contexts` is done. A capture on a stream that synchronizes with the
/// legacy stream is visible, and drain() waits for it. Any other capture is broken: recording an event in the
/// context breaks it, and the driver does not show it before. Errors: timed_out, capture_in_progress (the
/// message says whether one was broken), cancelled, context_lost.
[[nodiscard]] Result<void> drain(const Api& api, const std::vector<PrimaryContext>& contexts,
                                 const DrainLimits& limits);
/// The same for contexts of the program's own, which the caller keeps from being destroyed meanwhile.
[[nodiscard]] Result<void> drain(const Api& api, const std::vector<CUcontext>& contexts,
                                 const DrainLimits& limits);

} // namespace gpu_sleep::driver
