// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's memory by its calls: plain, by cuMemAlloc and its like; of pools; virtual; and from the C
// API. Where calls are intercepted plain memory, and that from the C API, is in the index of allocations:
// other calls name it. Copies from every device reach it, and kernels once the program has asked for that.
// Source: CUDA Driver API, Memory Management.

#pragma once

#include "intercepted/calls.hpp"

namespace gpu_sleep::agent::intercepted {

[[nodiscard]] Answer allocate(CUdeviceptr* address, std::size_t bytes, ResidualRecord& residual) noexcept;
[[nodiscard]] Answer allocate_pitched(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                      std::size_t height, unsigned element_bytes,
                                      ResidualRecord& residual) noexcept;
/// Waits for the work of the memory's context, as the driver's own does.
[[nodiscard]] Answer free(CUdeviceptr address) noexcept;

/// cuMemGetAccess of `known`, whether it sleeps or not, where the driver answered `status` and `flags`.
/// Source: CUDA Driver API, cuMemGetAccess; what it says of plain memory was seen.
[[nodiscard]] CUresult access_of(const Allocation& known, const CUmemLocation& location, CUresult status,
                                 unsigned long long& flags) noexcept;
/// Lets `devices` reach the range of `address`, as its `owner` does. Whether that was new to any.
bool let_reach(ProgramMemory& memory, driver::DeviceMask devices, int owner, CUdeviceptr address) noexcept;
/// Lets more devices reach memory of another process that is open. Errors: driver_failed.
[[nodiscard]] Result<void> extend_reach(const driver::Api& api, LockedMemory& locked, const Import& import,
                                        driver::DeviceMask devices);
/// Lets all devices that may reach an imported pool reach what was imported by it.
void let_reach_imports(ProgramMemory& memory, const Pool& pool);
/// The current context may reach memory of `peer`'s device from now on.
void peer_access_enabled(CUcontext peer) noexcept;
/// The driver refused a copy, as it does when an intercepted range lies on a device that the copy's context
/// was not granted access from. Grants it to all devices in use; false when nothing was missing.
[[nodiscard]] bool let_copies_reach(const gate::Inspector& copy) noexcept;

// Stream-ordered memory and its pools. `per_thread`: the null stream is the thread's own.

[[nodiscard]] Answer allocate_async(CUdeviceptr* address, std::size_t bytes, std::optional<CUmemoryPool> pool,
                                    CUstream stream, bool per_thread, ResidualRecord& residual) noexcept;
[[nodiscard]] Answer free_async(CUdeviceptr address, CUstream stream, bool per_thread) noexcept;
void pool_created(CUmemoryPool pool, const CUmemPoolProps& properties) noexcept;
/// Runs the driver's cuMemPoolDestroy; what was allocated from the pool lives on.
CUresult end_pool(CUmemoryPool pool, const std::function<CUresult()>& destroy) noexcept;
void pool_trimmed(CUmemoryPool pool, std::size_t keep) noexcept;
/// After the driver set an attribute: the threshold, a switch, or a peak that begins anew.
void pool_set(CUmemoryPool pool, CUmemPool_attribute attribute, const void* value) noexcept;
/// Adds what we hold for the pool to what the driver answered. What a synchronise owes is gone before
/// (give_back_due()).
void add_pool_figures(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) noexcept;
/// After the driver allocated of the pool, which may be one of which we have memory, too.
void note_mixed_pool(CUmemoryPool pool) noexcept;
void pool_access(CUmemoryPool pool, const CUmemAccessDesc* grants, std::size_t count) noexcept;

// Memory that stays on the GPU while the program sleeps: noted where it is made, and summed up with the
// reasons.

/// A row for each kind, device and reason; of a program that is not intercepted, only for what the agent has
/// allocated. Thins where memory is short.
[[nodiscard]] std::vector<Residual> residual(const LockedMemory& locked) noexcept;

void imported(CUdeviceptr address, std::size_t bytes, const char* kind) noexcept;
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

// Of the C API.

/// Errors: those of ProgramMemory::allocate().
[[nodiscard]] Result<driver::DeviceAddress> allocate_own(ProgramMemory& memory, int device,
                                                         std::string_view tag, Bytes bytes);
/// Waits for the work that may use the allocation, and frees it. Errors: not_owned (none of allocate_own()
/// begins there, or another thread was faster); capture_in_progress; those of ProgramMemory::free(), and of
/// driver::drain() but context_lost.
[[nodiscard]] Result<void> free_own(ProgramMemory& memory, driver::DeviceAddress address);
/// Errors: those of ProgramMemory::allow_access().
[[nodiscard]] Result<void> allow_own(ProgramMemory& memory, driver::DeviceAddress address, int device);

} // namespace gpu_sleep::agent::intercepted
