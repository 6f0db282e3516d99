// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking the GPU whether it still works for the program.

#pragma once

#include "driver/api.hpp"

#include <cstdint>

namespace gpu_sleep::agent::intercepted {

enum class RunningWork : std::uint8_t {
    none,    ///< all that was given to the GPU is done
    some,    ///< not all of it, or that could not be asked just now
    unknown, ///< the driver cannot be asked (before 12.5)
};

/// Whether the GPU has done all that the program gave it, in all contexts. Breaks no capture and keeps none
/// from beginning; waits for nobody, and for the GPU for some milliseconds at most. May throw for want of
/// memory. Source: CUDA Driver API, cuCtxRecordEvent.
[[nodiscard]] RunningWork find_running_work(const driver::Api& api);

} // namespace gpu_sleep::agent::intercepted
