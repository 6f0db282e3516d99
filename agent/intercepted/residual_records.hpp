// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that stays on the GPU with the driver: managed, imported, arrays, behind handles of the driver, and
// what the least size, or a rule, leaves to it.

#pragma once

#include "base/units.hpp"
#include "intercepted/answer.hpp"

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace gpu_sleep::agent::intercepted {

/// Reasons that decide what else can be done with the process.
inline constexpr char k_of_another_process[] = "it belongs to another process";
inline constexpr char k_exported[] = "shared with others";
inline constexpr char k_in_multicast_group[] = "bound to a multicast group";

/// One kind of memory that stays, on one device.
struct Residual {
    const char* kind;
    int device;
    Bytes bytes;
    std::uint64_t count;
    const char* reason;
};

void managed_allocated(CUdeviceptr address, std::size_t bytes) noexcept;
void imported(CUdeviceptr address, std::size_t bytes, const char* kind) noexcept;
void forget_residual(CUdeviceptr address) noexcept;
/// The driver gave out a handle that is none of ours, or one more reference to it; or is about to take one
/// back.
void handle_taken(CUmemGenericAllocationHandle handle) noexcept;
void handle_released(CUmemGenericAllocationHandle handle) noexcept;
/// The memory of such a handle is shared with other processes: `how` is k_exported or k_of_another_process.
void handle_shared(CUmemGenericAllocationHandle handle, const char* how) noexcept;
/// The driver mapped memory behind a handle that is none of ours, or unmapped whatever was there.
void mapped_by_driver(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle) noexcept;
void unmapped_by_driver(CUdeviceptr address, std::size_t bytes) noexcept;
/// Takes out what the context has of managed memory and arrays, which is only counted.
[[nodiscard]] PutBack take_managed_of(CUcontext context);
/// Memory of the current context that the driver keeps to itself, until forget_residual() or the context's
/// end.
void stays_in_context(CUdeviceptr address, Bytes bytes, const char* kind, const char* reason) noexcept;
/// Adds `row` to the one of its kind, device and reason.
void add_to_sum(std::vector<Residual>& sums, const Residual& row);
/// Adds all of that.
void add_residual_records(std::vector<Residual>& sums);

/// The driver made an array, or a mipmapped one of so many levels. `array` is the handle: no address in
/// memory of the program's.
void array_created(const void* array, const CUDA_ARRAY3D_DESCRIPTOR& wanted, unsigned levels) noexcept;

/// After the driver allocated what the least size, or a rule, leaves to it.
void allocated_by_driver(CUdeviceptr address, std::size_t bytes, const ResidualCause& cause) noexcept;
/// Runs the driver's `free` of an allocation, which need not be one of those.
CUresult free_by_driver(CUdeviceptr address, const std::function<CUresult()>& free) noexcept;
/// Takes out what it allocated so in the context.
[[nodiscard]] PutBack take_allocations_of_driver(CUcontext context, bool is_primary);
/// Adds what it allocated so.
void add_allocations_of_driver(std::vector<Residual>& sums);

} // namespace gpu_sleep::agent::intercepted
