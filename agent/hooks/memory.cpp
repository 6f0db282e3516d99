// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hooks of plain and stream-ordered memory and of pools: a few lines each, no policy.

#include "hooks/driver_table.hpp"
#include "intercepted/answer.hpp"
#include "intercepted/ipc.hpp"
#include "intercepted/left.hpp"
#include "intercepted/objects.hpp"
#include "intercepted/plain.hpp"
#include "intercepted/pool_figures.hpp"
#include "intercepted/pools.hpp"
#include "intercepted/residents.hpp"
#include "intercepted/trimming.hpp"
#include "life/start.hpp"

#include <optional>

namespace gpu_sleep::hooks::own {

CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
    agent::intercepted::Left left;
    if (agent::life::intercepts_allocations())
        if (const auto answer = agent::intercepted::allocate(address, bytes, left)) return *answer;
    const auto status = real<Entry::cuMemAlloc_v2>()(address, bytes);
    if (status == CUDA_SUCCESS) agent::intercepted::left_to_driver(*address, bytes, left);
    return status;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, std::size_t* pitch, std::size_t width, std::size_t height,
                            unsigned element_bytes) {
    agent::intercepted::Left left;
    if (agent::life::intercepts_allocations())
        if (const auto answer =
                agent::intercepted::allocate_pitched(address, pitch, width, height, element_bytes, left))
            return *answer;
    const auto status = real<Entry::cuMemAllocPitch_v2>()(address, pitch, width, height, element_bytes);
    if (status == CUDA_SUCCESS) agent::intercepted::left_to_driver(*address, *pitch * height, left);
    return status;
}

// Freeing touches nothing: what sleeps is dropped.
CUresult cuMemFree_v2(CUdeviceptr address) {
    if (intercepts())
        if (const auto answer = agent::intercepted::free(address)) return *answer;
    const auto free = [=] { return real<Entry::cuMemFree_v2>()(address); };
    if (!intercepts()) return free();
    const auto status = agent::intercepted::free_left(address, free);
    if (status == CUDA_SUCCESS) agent::intercepted::forget_residual(address);
    return status;
}

CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned flags) {
    const auto status = real<Entry::cuMemAllocManaged>()(address, bytes, flags);
    if (status == CUDA_SUCCESS && intercepts()) agent::intercepted::managed_allocated(*address, bytes);
    return status;
}

namespace {

template <Entry entry>
CUresult allocate_async(CUdeviceptr* address, std::size_t bytes, CUstream stream, bool per_thread) {
    agent::intercepted::Left left;
    if (agent::life::intercepts_allocations())
        if (const auto answer =
                agent::intercepted::allocate_async(address, bytes, std::nullopt, stream, per_thread, left))
            return *answer;
    const auto status = real<entry>()(address, bytes, stream);
    if (status == CUDA_SUCCESS) agent::intercepted::left_to_driver(*address, bytes, left);
    return status;
}

template <Entry entry>
CUresult allocate_from_pool(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool, CUstream stream,
                            bool per_thread) {
    agent::intercepted::Left left;
    if (agent::life::intercepts_allocations())
        if (const auto answer =
                agent::intercepted::allocate_async(address, bytes, pool, stream, per_thread, left))
            return *answer;
    const auto status = real<entry>()(address, bytes, pool, stream);
    if (status == CUDA_SUCCESS) agent::intercepted::left_to_driver(*address, bytes, left);
    return status;
}

template <Entry entry>
CUresult free_async(CUdeviceptr address, CUstream stream, bool per_thread) {
    if (intercepts())
        if (const auto answer = agent::intercepted::free_async(address, stream, per_thread)) return *answer;
    const auto free = [=] { return real<entry>()(address, stream); };
    if (!intercepts()) return free();
    const auto status = agent::intercepted::free_left(address, free);
    if (status == CUDA_SUCCESS) agent::intercepted::forget_residual(address); // managed memory, say
    return status;
}

} // namespace

CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
    return allocate_async<Entry::cuMemAllocAsync>(address, bytes, stream, false);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
    return allocate_async<Entry::cuMemAllocAsync_ptsz>(address, bytes, stream, true);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
    return allocate_from_pool<Entry::cuMemAllocFromPoolAsync>(address, bytes, pool, stream, false);
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
    return allocate_from_pool<Entry::cuMemAllocFromPoolAsync_ptsz>(address, bytes, pool, stream, true);
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    return free_async<Entry::cuMemFreeAsync>(address, stream, false);
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
    return free_async<Entry::cuMemFreeAsync_ptsz>(address, stream, true);
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
    const auto status = real<Entry::cuMemPoolCreate>()(pool, properties);
    if (status == CUDA_SUCCESS && intercepts()) agent::intercepted::pool_created(*pool, *properties);
    return status;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    const auto call = [=] { return real<Entry::cuMemPoolDestroy>()(pool); };
    return intercepts() ? agent::intercepted::end_pool(pool, call) : call();
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, std::size_t keep) {
    if (intercepts()) agent::intercepted::pool_trimmed(pool, keep);
    return real<Entry::cuMemPoolTrimTo>()(pool, keep);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
    const auto status = real<Entry::cuMemPoolSetAttribute>()(pool, attribute, value);
    if (status == CUDA_SUCCESS && intercepts()) agent::intercepted::pool_set(pool, attribute, value);
    return status;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
    if (intercepts()) agent::intercepted::give_back_due(); // it is gone before anybody sees it
    const auto status = real<Entry::cuMemPoolGetAttribute>()(pool, attribute, value);
    if (status == CUDA_SUCCESS && intercepts()) agent::intercepted::add_pool_figures(pool, attribute, value);
    return status;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* grants, std::size_t count) {
    const auto status = real<Entry::cuMemPoolSetAccess>()(pool, grants, count);
    if (status == CUDA_SUCCESS && intercepts()) agent::intercepted::pool_access(pool, grants, count);
    return status;
}

// What is shared has to be awake, and stays so.
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
    if (intercepts())
        if (const auto answer = agent::intercepted::ipc_handle(handle, address)) return *answer;
    const auto status = real<Entry::cuIpcGetMemHandle>()(handle, address);
    if (status == CUDA_SUCCESS && intercepts())
        agent::intercepted::object_made(agent::intercepted::Object::shared_memory, address);
    return status;
}

namespace {

template <Entry entry>
CUresult open_ipc(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
    if (intercepts())
        if (const auto answer = agent::intercepted::open_ipc(address, handle, flags)) return *answer;
    const auto status = real<entry>()(address, handle, flags);
    if (status == CUDA_SUCCESS && intercepts()) {
        CUdeviceptr base = 0;
        std::size_t bytes = 0;
        static_cast<void>(real<Entry::cuMemGetAddressRange_v2>()(&base, &bytes, *address));
        agent::intercepted::imported(*address, bytes, "ipc");
    }
    return status;
}

} // namespace

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
    return open_ipc<Entry::cuIpcOpenMemHandle>(address, handle, flags);
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
    return open_ipc<Entry::cuIpcOpenMemHandle_v2>(address, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    if (intercepts())
        if (const auto answer = agent::intercepted::close_ipc(address)) return *answer;
    const auto status = real<Entry::cuIpcCloseMemHandle>()(address);
    if (status == CUDA_SUCCESS && intercepts()) agent::intercepted::forget_residual(address);
    return status;
}

} // namespace gpu_sleep::hooks::own
