// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that stays on the GPU while the program sleeps. It is noted where it is made, and summed up with
// the reasons.

#pragma once

#include "intercepted/calls.hpp"

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace gpu_sleep::agent {
class LockedMemory;
}

namespace gpu_sleep::agent::intercepted {

/// A row for each kind, device and reason; of a program that is not intercepted, only for what the agent has
/// allocated. Thins where memory is short.
[[nodiscard]] std::vector<Residual> residual(const LockedMemory& locked) noexcept;

void imported(CUdeviceptr address, std::size_t bytes, const char* kind) noexcept;
/// The driver mapped memory behind a handle that is none of ours.
void mapped_by_driver(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle) noexcept;
/// Memory of the current context that the driver keeps to itself, until free_by_driver() or the context's
/// end.
void stays_in_context(CUdeviceptr address, Bytes bytes, const char* kind, const char* reason) noexcept;
/// The driver made an array, or a mipmapped one of so many levels. `array` is the handle: no address in
/// memory of the program's.
void array_created(const void* array, const CUDA_ARRAY3D_DESCRIPTOR& wanted, unsigned levels) noexcept;

/// After the driver allocated what the least size, or a rule, leaves to it.
void allocated_by_driver(CUdeviceptr address, std::size_t bytes, ResidualRecord residual) noexcept;
/// Runs the driver's `free` of memory, which need not be any that stays.
CUresult free_by_driver(CUdeviceptr address, const std::function<CUresult()>& free) noexcept;

} // namespace gpu_sleep::agent::intercepted
