// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How much of the host contents may use, and its defaults: memory, and the threads that copy.

#pragma once

#include "base/units.hpp"
#include "store/host_budget.hpp"

#include <algorithm>
#include <thread>

namespace gpu_sleep::contents {

/// HostUse::relay_threads by default. Where processors are many, moving contents on takes less time than
/// pinning their memory first (tests/bench/RESULTS.md).
[[nodiscard]] inline unsigned default_relay_threads() noexcept {
    constexpr unsigned k_many = 16;
    constexpr unsigned k_others = 4; // for the driver, and the rest of the host
    constexpr unsigned k_most = 28;
    const auto processors = std::thread::hardware_concurrency();
    return processors < k_many ? 0 : std::min(processors - k_others, k_most);
}

struct HostUse {
    unsigned fill_threads = 8; ///< that make host memory ready, for each device
    /// Pinned memory for contents on their way to or from files, shared by the devices. What goes to or
    /// comes from the files takes as much again.
    Bytes staging = 256 * k_mib;
    /// Host memory that may hold contents of what is awake, for the next sleep. 0: a wake gives all back.
    Bytes retained = 0;
    /// Threads that move contents on to host memory that is pinned only afterwards, for each device, and back
    /// if that is still to be done. 0: it is pinned first.
    unsigned relay_threads = default_relay_threads();
    /// New contents of a device, or what of a batch is not pinned: less than that is not relayed.
    Bytes relay_from = 2 * k_gib;
    unsigned check_threads = 32; ///< that read copies in host memory, for each device
    store::HostBudget* budget = &store::HostBudget::own(); ///< outlives all that use it
};

} // namespace gpu_sleep::contents
