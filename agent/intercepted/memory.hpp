// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's memory by its calls: plain, by cuMemAlloc and its like; of pools; of other processes; and
// from the C API. Where calls are intercepted plain memory, and that from the C API, is in the index of
// allocations: other calls name it. Copies from every device reach it, and kernels once the program has asked
// for that. Source: CUDA Driver API, Memory Management.

#pragma once

#include "gate/gate.hpp"
#include "intercepted/calls.hpp"
#include "model/request.hpp"
#include "server/shared_memory.hpp"

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
void pool_access(CUmemoryPool pool, const CUmemAccessDesc* grants, std::size_t count) noexcept;

// Legacy CUDA IPC of plain memory. Source: CUDA Driver API, cuIpcGetMemHandle.

/// A handle of ours for a plain allocation, which stays on the GPU from now on.
[[nodiscard]] Answer ipc_handle(CUipcMemHandle* handle, CUdeviceptr address) noexcept;
/// Opens such a handle of another process; waits for that one.
[[nodiscard]] Answer open_ipc(CUdeviceptr* address, const CUipcMemHandle& handle, unsigned flags) noexcept;
[[nodiscard]] Answer close_ipc(CUdeviceptr address) noexcept;
/// Memory of which the program made a handle. Thread-safe; does not wait for a sleep. Errors: not_owned
/// (there is no such memory, or no longer), driver_failed.
[[nodiscard]] Result<server::SharedMemory> share(const model::SharedMemoryRequest& request);

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
