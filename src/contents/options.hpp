// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How much of the host the moving of contents may use.

#pragma once

#include "base/units.hpp"

namespace gpu_sleep::contents {

struct Options {
    unsigned fill_threads = 8;        ///< that make host memory ready, for each device
    Bytes host_reserve = 256 * k_mib; ///< host memory left to everybody else
    /// Pinned memory for contents on their way to or from files, shared by the devices. What goes to or
    /// comes from the files takes as much again.
    Bytes staging = 256 * k_mib;
    /// Host memory that may hold contents of what is awake, for the next sleep. 0: a wake gives all back.
    Bytes retained = 0;
};

} // namespace gpu_sleep::contents
