// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What of the program's memory stays on the GPU while it sleeps, and why: the sum of what all parts know.

#pragma once

#include "intercepted/residents.hpp"

#include <vector>

namespace gpu_sleep::agent {
class LockedMemory;
}

namespace gpu_sleep::agent::intercepted {

/// A row for each kind, device and reason. Thins where memory is short.
[[nodiscard]] std::vector<Residual> residual(const LockedMemory& locked) noexcept;

} // namespace gpu_sleep::agent::intercepted
