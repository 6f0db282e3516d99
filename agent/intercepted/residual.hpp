// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The sum of all that stays on the GPU while the program sleeps, and why. A pair of its own, since it asks
// all parts, which record such memory themselves.

#pragma once

#include "intercepted/residual_records.hpp"

#include <vector>

namespace gpu_sleep::agent {
class LockedMemory;
}

namespace gpu_sleep::agent::intercepted {

/// A row for each kind, device and reason; of a program that is not intercepted, only for what the agent has
/// allocated. Thins where memory is short.
[[nodiscard]] std::vector<Residual> residual(const LockedMemory& locked) noexcept;

} // namespace gpu_sleep::agent::intercepted
