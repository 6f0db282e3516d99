// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Counting what stays with the driver. Internal to this module.

#pragma once

#include "intercepted/calls.hpp"

#include <vector>

namespace gpu_sleep::agent::intercepted {

/// Ranges, and handles of the program, whose memory cannot sleep.
void add_pinned_handles(const LockedMemory& locked, std::vector<Residual>& rows);
/// What the least size, or a rule, left to the driver, as sums.
void add_left(std::vector<Residual>& rows);
/// Adds `row` to the one of its kind, device and reason.
void add_to_sum(std::vector<Residual>& sums, const Residual& row);
/// Memory of the current context that the driver keeps to itself, until forget_residual() or the context's
/// end.
void stays_in_context(CUdeviceptr address, Bytes bytes, const char* kind, const char* reason) noexcept;
/// What the driver holds for the memory nodes of graphs.
void add_graph_memory(std::vector<Residual>& rows);

} // namespace gpu_sleep::agent::intercepted
