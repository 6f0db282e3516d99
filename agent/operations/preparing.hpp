// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Making host memory ready before the first sleep, for hosts on which that takes long.

#pragma once

#include "base/units.hpp"

#include <atomic>

namespace gpu_sleep::agent::operations {

struct Parts;

/// What is wanted and how far it is. But for what is atomic, used on the operations thread.
struct Preparation {
    /// How long the program's memory must not have changed; none: nothing is prepared.
    std::atomic<Milliseconds> settled_after{Milliseconds(0)};
    std::atomic<bool> is_urgent{false}; ///< the program has asked for it: it counts as settled

    Clock::time_point next_look{};
    Bytes wanted = 0;           ///< at the last look
    Bytes prepared = 0;         ///< then
    Clock::time_point since{};  ///< when `wanted` became what it is
    bool has_given_way = false; ///< what was prepared had to go, and `wanted` has not changed since
    bool has_slept = false;     ///< it has done its service
};

/// Prepares a little, if it was asked for and the program's memory is settled: as much as a sleep of level 1
/// would keep of what is awake, within what may be retained. After a sleep, which leaves its own memory to
/// the next one, gives back what it has not taken. Returns whether there is more to do at once. On the
/// operations thread.
[[nodiscard]] bool prepare_some(Parts& parts);

} // namespace gpu_sleep::agent::operations
