// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Starting the agent for a program that does not know of it.

#pragma once

namespace gpu_sleep::agent::lifecycle {

/// After the program's cuInit. What fails is logged. Thread-safe.
void start() noexcept;
/// Whether the program's allocations are intercepted. If so, starts the agent where that failed some seconds
/// ago, or longer. Thread-safe.
[[nodiscard]] bool intercepts_allocations() noexcept;

} // namespace gpu_sleep::agent::lifecycle
