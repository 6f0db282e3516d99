// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Waiting until a time in poll(2), which counts in milliseconds.

#pragma once

#include "base/units.hpp"

#include <algorithm>
#include <limits>

namespace gpu_sleep {

/// The timeout for poll(2): rounded up, so that the deadline has passed afterwards; 0 once it has.
[[nodiscard]] inline int milliseconds_until(Clock::time_point deadline) noexcept {
    const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now()).count();
    return static_cast<int>(std::clamp<Milliseconds::rep>(left, 0, std::numeric_limits<int>::max()));
}

} // namespace gpu_sleep
