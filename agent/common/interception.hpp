// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whether this process's use of the driver is intercepted.

#pragma once

namespace gpu_sleep::agent {

/// Decided once, by the environment (GPU_SLEEP_CAPTURE=1). Thread-safe.
[[nodiscard]] bool intercepts() noexcept;

/// Why a request that needs interception is refused where there is none.
inline constexpr const char* k_not_intercepted = "its calls to the driver are not intercepted, so they "
                                                 "cannot be held back; start it with gpu-run";

/// From here on every hook only passes calls on: in a child of fork(), where CUDA does not work.
void stop_intercepting() noexcept;

/// Logs once, when the program first uses CUDA, that GPU_SLEEP_CAPTURE has an invalid value.
void check_interception_setting() noexcept;

} // namespace gpu_sleep::agent
