// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whether this process's use of the driver is intercepted.

#pragma once

namespace gpu_sleep::agent {

/// Decided once, by the environment (GPU_SLEEP_CAPTURE=1). Thread-safe.
[[nodiscard]] bool intercepts() noexcept;

/// Why what needs that is refused where it is not so.
inline constexpr const char* k_not_intercepted = "its calls to the driver are not intercepted, so they "
                                                 "cannot be held back; start it with gpu-run";

/// From here on every hook only passes calls on: in a child of fork(), where CUDA does not work.
void stop_intercepting() noexcept;

/// Says once, when the program turns to CUDA, that what its environment says of it makes no sense.
void check_interception_setting() noexcept;

} // namespace gpu_sleep::agent
