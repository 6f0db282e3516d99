// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whether this process's use of the driver is caught.

#pragma once

namespace gpu_sleep::hooks {

/// Decided once, by the environment (GPU_SLEEP_CAPTURE=1). Thread-safe.
[[nodiscard]] bool catches() noexcept;

/// From here on every hook only passes calls on: in a child of fork(), where CUDA does not work.
void stop_catching() noexcept;

/// Says once, when the program turns to CUDA, that what its environment says of catching makes no sense.
void check_setting() noexcept;

} // namespace gpu_sleep::hooks
