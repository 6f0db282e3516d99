// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's own memory, intercepted: what its calls of the driver mean for the heap and the ledger. The
// hooks call this; the types are cuda.h's, so that it can be read with or without the older entry points.

#pragma once

#include "base/result.hpp"
#include "base/units.hpp"
#include "gate/gate.hpp"
#include "model/model.hpp"

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <shared_mutex>
#include <span>
#include <vector>

namespace gpu_sleep::agent {
class LockedMemory;
}

/// All functions are thread-safe and let nothing cross: what fails inside returns a status of the driver. No
/// call needs the agent to run; without it everything is left to the driver.
namespace gpu_sleep::agent::intercepted {

/// The status to return, or nothing: the call is the driver's.
using Answer = std::optional<CUresult>;

/// What becomes of an allocation that is left to the driver because the least size, or a rule, says so.
struct Left {
    const char* reason = nullptr; ///< null for any other: nobody counts it
    CUcontext context = nullptr;
    int device = 0;
    bool is_pooled = false;
    CUmemoryPool pool = nullptr; ///< of which it is, if it is
};

// Plain memory. Source: CUDA Driver API, Memory Management.
[[nodiscard]] Answer allocate(CUdeviceptr* address, std::size_t bytes, Left& left) noexcept;
[[nodiscard]] Answer allocate_pitched(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                      std::size_t height, unsigned element_bytes, Left& left) noexcept;
/// Waits for the work of the memory's context, as the driver's own does.
[[nodiscard]] Answer free(CUdeviceptr address) noexcept;

// Stream-ordered memory. `per_thread`: the null stream is the thread's own.
[[nodiscard]] Answer allocate_async(CUdeviceptr* address, std::size_t bytes, std::optional<CUmemoryPool> pool,
                                    CUstream stream, bool per_thread, Left& left) noexcept;
[[nodiscard]] Answer free_async(CUdeviceptr address, CUstream stream, bool per_thread) noexcept;
/// The program waited for some or all of its work: pools give back what exceeds their thresholds.
void synchronized() noexcept;
/// They do so now, if they have not since.
void give_back_due() noexcept;
void pool_created(CUmemoryPool pool, const CUmemPoolProps& properties) noexcept;
/// Runs the driver's cuMemPoolDestroy with the pool out of the books; what was allocated from it lives on.
CUresult end_pool(CUmemoryPool pool, const std::function<CUresult()>& destroy) noexcept;
void pool_trimmed(CUmemoryPool pool, std::size_t keep) noexcept;
/// After the driver set an attribute: the threshold, a switch, or a peak that begins anew.
void pool_set(CUmemoryPool pool, CUmemPool_attribute attribute, const void* value) noexcept;
void pool_access(CUmemoryPool pool, const CUmemAccessDesc* grants, std::size_t count) noexcept;
/// Adds what we hold for the pool to what the driver answered.
void add_pool_figures(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) noexcept;
/// Runs the driver's cuStreamDestroy with the stream out of the books, for another may get its handle at
/// once.
CUresult end_stream(CUstream stream, const std::function<CUresult()>& destroy) noexcept;

// The program's own virtual memory.
[[nodiscard]] Answer create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                            const CUmemAllocationProp* properties, unsigned long long flags) noexcept;
[[nodiscard]] Answer release(CUmemGenericAllocationHandle handle) noexcept;
[[nodiscard]] Answer map(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) noexcept;
[[nodiscard]] Answer unmap(CUdeviceptr address, std::size_t bytes) noexcept;
[[nodiscard]] Answer set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* grants,
                                std::size_t count) noexcept;
[[nodiscard]] Answer retain_handle(CUmemGenericAllocationHandle* handle, const void* address) noexcept;
[[nodiscard]] Answer properties_of(CUmemAllocationProp* properties,
                                   CUmemGenericAllocationHandle handle) noexcept;
/// Runs `use` with the driver's handle behind the program's, or with the handle itself when it is none of
/// ours. If it succeeds the memory has to stay where it is from now on; `reason` says why. The caller passes
/// the gate meanwhile, so that nothing moves.
CUresult use_handle(CUmemGenericAllocationHandle handle, const char* reason,
                    const std::function<CUresult(CUmemGenericAllocationHandle)>& use) noexcept;
/// Runs the driver's cuMemMapArrayAsync on a copy of `maps` that has the driver's handles.
CUresult map_arrays(const CUarrayMapInfo* maps, unsigned count,
                    const std::function<CUresult(CUarrayMapInfo*)>& map) noexcept;
/// Adds where the handle's memory is mapped; nothing for one that is none of ours. May throw for want of
/// memory.
void add_mappings_of(CUmemGenericAllocationHandle handle, gate::Named& named);
/// Memory in the span has to stay where it is from now on. The caller passes the gate since before it was
/// given away.
void pin_span(CUdeviceptr address, std::size_t bytes, const char* reason) noexcept;
/// Whether the program has something mapped there, awake or asleep.
[[nodiscard]] bool has_mappings_in(CUdeviceptr address, std::size_t bytes) noexcept;
/// Whether memory that the program mapped itself sleeps, which it cannot unmap.
[[nodiscard]] bool own_mappings_sleep() noexcept;
/// What a call returns that would need sleeping memory and cannot wait for it.
inline constexpr CUresult k_sleeps = CUDA_ERROR_SYSTEM_NOT_READY;

// Legacy CUDA IPC. Source: CUDA Driver API, cuIpcGetMemHandle.
/// A handle of ours for a plain allocation, which stays on the GPU from now on.
[[nodiscard]] Answer ipc_handle(CUipcMemHandle* handle, CUdeviceptr address) noexcept;
/// Opens such a handle of another process; waits for that one.
[[nodiscard]] Answer open_ipc(CUdeviceptr* address, const CUipcMemHandle& handle, unsigned flags) noexcept;
[[nodiscard]] Answer close_ipc(CUdeviceptr address) noexcept;

// What is known of an address without the driver.
struct Known {
    CUdeviceptr address = 0; ///< of the allocation
    std::size_t bytes = 0;   ///< that the program asked for
    int device = 0;
    CUcontext context = nullptr; ///< where it was allocated; null for virtual memory
    CUmemoryPool pool = nullptr;
    unsigned long long id = 0; ///< never used twice
    bool is_virtual = false;  ///< the program's own mapping: the driver's answers are right while it is awake
    std::uint64_t access = 0; ///< of virtual memory: the devices that may read and write it, one bit each
    bool is_own = false;      ///< from the C API: a part of a range of which the driver alone would speak
    unsigned long long handle_types = 0; ///< as which virtual memory may be shared
};
[[nodiscard]] std::optional<Known> find(CUdeviceptr address) noexcept;
/// Whether something is allocated in these bytes of a range that the agent made: mappings of the program's
/// own are not meant.
[[nodiscard]] bool is_range_of_ours(CUdeviceptr begin, std::size_t bytes) noexcept;
/// cuMemGetAccess of `known`, whether it sleeps or not, where the driver answered `status` and `flags`.
/// Source: CUDA Driver API, cuMemGetAccess; what it says of plain memory was seen.
[[nodiscard]] CUresult access_of(const Known& known, const CUmemLocation& location, CUresult status,
                                 unsigned long long& flags) noexcept;

// Graph captures.
/// Before the driver begins one, which this thread alone may end or any; returns its number, for
/// capture_failed() if it did not.
[[nodiscard]] std::uint64_t capture_begins(CUstream stream, bool per_thread, bool any_may_end) noexcept;
void capture_failed(CUstream stream, bool per_thread, std::uint64_t number) noexcept;
/// The number of the stream's capture before the driver ends it, for capture_ended(); 0 without one.
[[nodiscard]] std::uint64_t capture_ends(CUstream stream, bool per_thread) noexcept;
void capture_ended(CUstream stream, bool per_thread, std::uint64_t number, CUresult status) noexcept;
[[nodiscard]] unsigned captures_open() noexcept;
/// Whether one is that the calling thread began.
[[nodiscard]] bool has_capture_open() noexcept;
/// The streams in which the calling thread began those that it alone may end: as many as fit. Returns how
/// many.
[[nodiscard]] std::size_t streams_captured_here(std::span<CUstream> streams) noexcept;
/// What sleeps of that for which threads wait at the gate that have a capture open, which cannot end before.
/// Nothing if none waits; empty if it is not known what for.
[[nodiscard]] std::optional<std::vector<gate::Named::Span>> captures_wait_for();

// Contexts.
void context_created(CUcontext context) noexcept;
/// Runs the driver's cuCtxDestroy. What is known of the context is out of the books meanwhile, for another
/// may get its handle at once, and comes back if the context stays; its memory goes with it.
CUresult end_context(CUcontext context, const std::function<CUresult()>& destroy) noexcept;
/// The same for cuCtxDetach: a context that others are attached to stays.
CUresult detach_context(CUcontext context, const std::function<CUresult()>& detach) noexcept;
/// Runs the driver's cuGreenCtxCreate, and its cuCtxFromGreenCtx. A green context holds its device's primary
/// one, and memory is allocated there.
CUresult make_green_context(const CUgreenCtx* green, CUdevice device, const std::function<CUresult()>& make,
                            const std::function<CUresult(CUcontext*)>& convert) noexcept;
/// The same as end_context() for cuGreenCtxDestroy, which does not wait for work and may end the primary
/// context.
CUresult end_green_context(CUgreenCtx green, const std::function<CUresult()>& destroy) noexcept;
/// Runs the driver's cuDevicePrimaryCtxRetain: the program holds a primary context once more.
CUresult retain_primary_context(CUdevice device, const std::function<CUresult()>& retain) noexcept;
/// The same as end_context() for cuDevicePrimaryCtxRelease and cuDevicePrimaryCtxReset.
CUresult release_primary_context(CUdevice device, const std::function<CUresult()>& release) noexcept;
CUresult reset_primary_context(CUdevice device, const std::function<CUresult()>& reset) noexcept;
[[nodiscard]] std::vector<CUcontext> own_contexts() noexcept;
/// Makes a primary context that is in use current on the calling thread, which is ours and ends soon:
/// what the runtime is asked there would make one on the first device otherwise, for good. Never waits. False
/// where there is none, or one ends just now.
[[nodiscard]] bool enter_primary_context() noexcept;
/// The program's own contexts of the device. They live as long as the caller holds contexts_mutex().
[[nodiscard]] std::vector<CUcontext> own_contexts_of(int device);
/// Held alone while a context ends, and shared while we work in contexts that the program may end meanwhile:
/// touching one that is gone corrupts memory. Shared also while we hold a primary context, unless the gate is
/// shut for a transaction: our letting go must not be what ends it. It comes before the mutex of the pools.
[[nodiscard]] std::shared_mutex& contexts_mutex() noexcept;
/// Waits until nobody waits to hold it alone, or for a bounded time. Before it is held shared to wait for the
/// GPU: many who do so one after the other would keep a context from ending for ever.
void let_contexts_end() noexcept;
/// The current context may reach memory of `peer`'s device from now on.
void peer_access_enabled(CUcontext peer) noexcept;
/// The driver refused a copy, as it does when a intercepted range lies on a device that the copy's context
/// was not granted access from. Grants it to all devices in use; false when nothing was missing.
[[nodiscard]] bool let_copies_reach(const gate::Inspector& copy) noexcept;

// Memory that stays with the driver.
void managed_allocated(CUdeviceptr address, std::size_t bytes) noexcept;
void imported(CUdeviceptr address, std::size_t bytes, const char* kind) noexcept;
void forget_residual(CUdeviceptr address) noexcept;
/// The driver made an array, or a mipmapped one of so many levels. `array` is the handle: no address in
/// memory of the program's.
void array_created(const void* array, const CUDA_ARRAY3D_DESCRIPTOR& wanted, unsigned levels) noexcept;
/// The driver gave out a handle for memory of another process, or took a reference to it back.
void handle_imported(CUmemGenericAllocationHandle handle) noexcept;
void imported_handle_released(CUmemGenericAllocationHandle handle) noexcept;
/// The driver mapped memory behind a handle that is none of ours, or unmapped whatever was there.
void mapped_by_driver(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle) noexcept;
void unmapped_by_driver(CUdeviceptr address, std::size_t bytes) noexcept;
/// After the driver allocated what was left to it.
void left_to_driver(CUdeviceptr address, std::size_t bytes, const Left& left) noexcept;
/// Runs the driver's `free` of the allocation, which need not be one of those.
CUresult free_left(CUdeviceptr address, const std::function<CUresult()>& free) noexcept;

/// One kind of memory that stays, on one device.
struct Residual {
    const char* kind;
    int device;
    Bytes bytes;
    std::uint64_t count;
    const char* reason;
};
[[nodiscard]] std::vector<Residual> residual(const LockedMemory& locked) noexcept;

/// Gives back every cached block that nobody uses: before a sleep, and when memory is short.
void trim() noexcept;

} // namespace gpu_sleep::agent::intercepted
