// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hooks of plain and stream-ordered memory, of pools and of arrays: a few lines each, no policy.

#include "intercepted/memory.hpp"
#include "hooks/deep_answers.hpp"
#include "intercepted/calls.hpp"
#include "intercepted/freeing.hpp"
#include "intercepted/objects.hpp"
#include "intercepted/pool_table.hpp"
#include "lifecycle/start.hpp"
#include "sharing/sharing.hpp"

namespace gpu_sleep::hooks::own {
namespace {

using intercepted::ResidualRecord;

/// `ours` if that answers; else `theirs`, the driver's, of which `size` says how many bytes those are.
template <class Size, class Ours, class Theirs>
CUresult allocate(CUdeviceptr* address, const Size& size, const Ours& ours, const Theirs& theirs) {
    ResidualRecord residual;
    if (agent::lifecycle::intercepts_allocations())
        if (const auto answer = ours(residual)) return *answer;
    const auto status = theirs();
    if (status == CUDA_SUCCESS) intercepted::allocated_by_driver(*address, size(), residual);
    return status;
}

template <Entry entry, class... Rest>
CUresult allocate_async_of(std::optional<CUmemoryPool> pool, CUstream stream, CUdeviceptr* address,
                           std::size_t bytes, Rest... rest) {
    return allocate(
        address, [=] { return bytes; },
        [=](ResidualRecord& residual) {
            return intercepted::allocate_async(address, bytes, pool, stream, k_per_thread<entry>, residual);
        },
        [=] { return real<entry>()(address, bytes, rest...); });
}
template <Entry entry>
CUresult allocate_async(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
    return allocate_async_of<entry>({}, stream, address, bytes, stream);
}
template <Entry entry>
CUresult allocate_from_pool(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool, CUstream stream) {
    return allocate_async_of<entry>(pool, stream, address, bytes, pool, stream);
}

/// Frees what the driver has given: by its address, or an array by its handle.
template <Entry entry, class Memory, class... Arguments>
CUresult free_of_driver(Memory freed, Arguments... arguments) {
    const auto free = [=] { return real<entry>()(freed, arguments...); };
    return intercepts() ? intercepted::free_by_driver(bits_of(freed), free) : free();
}

template <Entry entry>
CUresult free_async(CUdeviceptr address, CUstream stream) {
    if (intercepts())
        if (const auto answer = intercepted::free_async(address, stream, k_per_thread<entry>)) return *answer;
    return free_of_driver<entry>(address, stream);
}

template <Entry entry>
CUresult open_ipc(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
    if (intercepts())
        if (const auto answer = agent::sharing::open_ipc(address, handle, flags)) return *answer;
    return noted(real<entry>()(address, handle, flags), [=] {
        CUdeviceptr base = 0;
        std::size_t bytes = 0;
        static_cast<void>(real<Entry::cuMemGetAddressRange_v2>()(&base, &bytes, *address));
        intercepted::imported(*address, bytes, "ipc");
    });
}

} // namespace

CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
    return allocate(
        address, [=] { return bytes; },
        [=](ResidualRecord& residual) { return intercepted::allocate(address, bytes, residual); },
        [=] { return real<Entry::cuMemAlloc_v2>()(address, bytes); });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, std::size_t* pitch, std::size_t width, std::size_t height,
                            unsigned element_bytes) {
    return allocate(
        address, [=] { return *pitch * height; },
        [=](ResidualRecord& residual) {
            return intercepted::allocate_pitched(address, pitch, width, height, element_bytes, residual);
        },
        [=] { return real<Entry::cuMemAllocPitch_v2>()(address, pitch, width, height, element_bytes); });
}

// Freeing touches nothing: what sleeps is dropped.
CUresult cuMemFree_v2(CUdeviceptr address) {
    if (intercepts())
        if (const auto answer = intercepted::free(address)) return *answer;
    return free_of_driver<Entry::cuMemFree_v2>(address);
}

CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned flags) {
    return noted(real<Entry::cuMemAllocManaged>()(address, bytes, flags), [=] {
        intercepted::stays_in_context(*address, bytes, "managed",
                                      "the driver moves it between host and device itself");
    });
}

GPU_SLEEP_SHARE(allocate_async, allocate_async)
GPU_SLEEP_SHARE(allocate_from_pool, allocate_from_pool)
GPU_SLEEP_SHARE(free_async, free_async)

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
    return noted(real<Entry::cuMemPoolCreate>()(pool, properties),
                 [=] { intercepted::pool_created(*pool, *properties); });
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    const auto call = [=] { return real<Entry::cuMemPoolDestroy>()(pool); };
    return intercepts() ? intercepted::end_pool(pool, call) : call();
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, std::size_t keep) {
    if (intercepts()) intercepted::pool_trimmed(pool, keep);
    return real<Entry::cuMemPoolTrimTo>()(pool, keep);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
    return noted(real<Entry::cuMemPoolSetAttribute>()(pool, attribute, value),
                 [=] { intercepted::pool_set(pool, attribute, value); });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
    if (intercepts()) intercepted::give_back_due(); // it is gone before anybody sees it
    return noted(real<Entry::cuMemPoolGetAttribute>()(pool, attribute, value),
                 [=] { intercepted::add_pool_figures(pool, attribute, value); });
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* grants, std::size_t count) {
    return noted(real<Entry::cuMemPoolSetAccess>()(pool, grants, count),
                 [=] { intercepted::pool_access(pool, grants, count); });
}

// Pools that the driver shares, it cannot bring back from a checkpoint.
CUresult cuMemPoolExportToShareableHandle(void* shareable, CUmemoryPool pool, CUmemAllocationHandleType type,
                                          unsigned long long flags) {
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && flags == 0 && intercepts())
        if (const auto answer = agent::sharing::export_pool(static_cast<int*>(shareable), pool))
            return *answer;
    return noted(real<Entry::cuMemPoolExportToShareableHandle>()(shareable, pool, type, flags),
                 [=] { intercepted::object_made(Object::shared_pool, bits_of(pool)); });
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* shareable,
                                            CUmemAllocationHandleType type, unsigned long long flags) {
    const auto descriptor = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && flags == 0 && intercepts())
        if (const auto answer = agent::sharing::import_pool(pool, descriptor)) return *answer;
    return noted(real<Entry::cuMemPoolImportFromShareableHandle>()(pool, shareable, type, flags),
                 [=] { intercepted::object_made(Object::shared_pool, bits_of(*pool)); });
}

CUresult cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool pool, CUmemPoolPtrExportData* data) {
    if (intercepts())
        if (const auto answer = agent::sharing::import_pointer(address, pool, data)) return *answer;
    return real<Entry::cuMemPoolImportPointer>()(address, pool, data);
}

// Shared memory has to be awake, and stays so.
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr address) {
    if (intercepts())
        if (const auto answer = agent::sharing::export_pointer(data, address)) return *answer;
    return real<Entry::cuMemPoolExportPointer>()(data, address);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
    if (intercepts())
        if (const auto answer = agent::sharing::ipc_handle(handle, address)) return *answer;
    return noted(real<Entry::cuIpcGetMemHandle>()(handle, address),
                 [=] { intercepted::object_made(intercepted::Object::shared_memory, address); });
}

GPU_SLEEP_SHARE(open_ipc, open_ipc)

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    if (intercepts())
        if (const auto answer = agent::sharing::close_ipc(address)) return *answer;
    return free_of_driver<Entry::cuIpcCloseMemHandle>(address);
}

// Arrays and mipmapped arrays stay with the driver.
CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* wanted) {
    return noted(real<Entry::cuArrayCreate_v2>()(array, wanted), [=] {
        intercepted::array_created(
            *array, {wanted->Width, wanted->Height, 0, wanted->Format, wanted->NumChannels, 0}, 1);
    });
}

CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* wanted) {
    return noted(real<Entry::cuArray3DCreate_v2>()(array, wanted),
                 [=] { intercepted::array_created(*array, *wanted, 1); });
}

GPU_SLEEP_SHARE(free_of_driver, free_of_driver)

CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* wanted,
                                unsigned levels) {
    return noted(real<Entry::cuMipmappedArrayCreate>()(array, wanted, levels),
                 [=] { intercepted::array_created(*array, *wanted, levels); });
}

} // namespace gpu_sleep::hooks::own
