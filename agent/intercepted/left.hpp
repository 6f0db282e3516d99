// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that is left to the driver because the least size, or a rule, says so.

#pragma once

#include "intercepted/answer.hpp"
#include "intercepted/pending_removal.hpp"
#include "intercepted/residents.hpp"

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace gpu_sleep::agent::intercepted {

/// After the driver allocated what was left to it.
void left_to_driver(CUdeviceptr address, std::size_t bytes, const Left& left) noexcept;
/// Runs the driver's `free` of the allocation, which need not be one of those.
CUresult free_left(CUdeviceptr address, const std::function<CUresult()>& free) noexcept;
/// Takes out what was left to the driver in the context, to be counted.
[[nodiscard]] PutBack take_left_of(CUcontext context, bool is_primary);
/// What the least size, or a rule, left to the driver, as sums.
void add_left(std::vector<Residual>& rows);

} // namespace gpu_sleep::agent::intercepted
