// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How much of the host contents may use, and its defaults: memory, and the threads that copy.

#pragma once

#include "base/units.hpp"

namespace gpu_sleep::contents {

/// Host memory that is left available when contents are retained: more than all programs together take
/// between two looks at it, as a rule. Where they take more, the kernel may end one of them.
inline constexpr Bytes k_left_available = 4 * k_gib;

/// How much may be retained, as the host's memory is now: what is available besides, less k_left_available.
/// Nothing where that cannot be told, nor while programs wait for memory for a tenth of the time.
/// Thread-safe; reads a handful of small files.
[[nodiscard]] Bytes room_for_retained();

/// HostUse::relay_threads by default. Where processors are many, moving contents on takes less time than
/// pinning their memory first (tests/bench/RESULTS.md).
[[nodiscard]] unsigned default_relay_threads() noexcept;

/// Host memory that this process may take now, beside `reserve`. Thread-safe; reads a handful of small files.
[[nodiscard]] Bytes room_for_contents(Bytes reserve);

struct HostUse {
    unsigned fill_threads = 8;        ///< that make host memory ready, for each device
    Bytes host_reserve = 256 * k_mib; ///< host memory left to everybody else
    /// Pinned memory for contents on their way to or from files, shared by the devices. What goes to or
    /// comes from the files takes as much again.
    Bytes staging = 256 * k_mib;
    /// Host memory that may hold contents of what is awake, for the next sleep. 0: a wake gives all back.
    Bytes retained = 0;
    Bytes (*room_for_retained)() = contents::room_for_retained; ///< asked at each wake, and now and then
    /// Threads that move contents on to host memory that is pinned only afterwards, for each device, and back
    /// if that is still to be done. 0: it is pinned first.
    unsigned relay_threads = default_relay_threads();
    /// New contents of a device, or what of a batch is not pinned: less than that is not relayed.
    Bytes relay_from = 2 * k_gib;
    unsigned check_threads = 32; ///< that read copies in host memory, for each device
    Bytes (*room_for_contents)(Bytes reserve) = contents::room_for_contents; ///< asked where files may help
};

} // namespace gpu_sleep::contents
