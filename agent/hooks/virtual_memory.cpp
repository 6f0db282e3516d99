// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hooks of the program's own virtual memory: a few lines each, no policy.

#include "intercepted/virtual_memory.hpp"
#include "hooks/driver_table.hpp"
#include "intercepted/memory.hpp"
#include "lifecycle/start.hpp"
#include "sharing/sharing.hpp"

namespace gpu_sleep::hooks::own {
namespace {

/// As intercepted::use_handle(), where anything is intercepted.
template <class Use>
CUresult use_handle(CUmemGenericAllocationHandle handle, const char* reason, const Use& use) noexcept {
    return intercepts() ? intercepted::use_handle(handle, reason, std::cref(use)) : use(handle);
}

/// The driver's own handle, which is none of ours.
CUresult with_reference(CUresult status, const CUmemGenericAllocationHandle* handle) noexcept {
    return noted(status, [=] { registry::books().residual.handle_taken(*handle); });
}

/// Memory whose address was given away has to stay where it is.
CUresult made_to_stay(CUresult status, CUdeviceptr address, std::size_t bytes, const char* reason) noexcept {
    return noted(status, [=] { intercepted::make_span_stay(address, bytes, reason); });
}

} // namespace

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
    if (agent::lifecycle::intercepts_allocations())
        if (const auto answer = intercepted::create(handle, bytes, properties, flags)) return *answer;
    return with_reference(real<Entry::cuMemCreate>()(handle, bytes, properties, flags), handle);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    if (intercepts()) {
        if (const auto answer = intercepted::release(handle)) return *answer;
        registry::books().residual.handle_released(handle); // first: another may have it at once
    }
    return real<Entry::cuMemRelease>()(handle);
}

// Mapping and unmapping pass the gate as allocations do, for an allocator does both under a mutex of its own;
// but in part asleep nobody may move what sleeps.
CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
    if (intercepts())
        if (const auto answer = intercepted::map(address, bytes, offset, handle, flags)) return *answer;
    return noted(real<Entry::cuMemMap>()(address, bytes, offset, handle, flags), [=] {
        const bool is_imported = registry::books().residual.mapped(address, handle);
        if (is_imported) intercepted::imported(address, bytes, "virtual");
    });
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
    const auto answer = intercepts() ? intercepted::unmap(address, bytes) : std::nullopt;
    return noted(answer ? *answer : real<Entry::cuMemUnmap>()(address, bytes),
                 [=] { registry::books().residual.unmapped(address, bytes); });
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* grants,
                        std::size_t count) {
    if (intercepts())
        if (const auto answer = intercepted::set_access(address, bytes, grants, count)) return *answer;
    return real<Entry::cuMemSetAccess>()(address, bytes, grants, count);
}

// Without what sleeps the driver would think the addresses unused, and give them to others.
CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
    if (intercepts() && intercepted::has_mappings_in(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return real<Entry::cuMemAddressFree>()(address, bytes);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
    if (intercepts())
        if (const auto answer = intercepted::retain_handle(handle, address)) return *answer;
    return with_reference(real<Entry::cuMemRetainAllocationHandle>()(handle, address), handle);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
    if (intercepts())
        if (const auto answer = intercepted::properties_of(properties, handle)) return *answer;
    return real<Entry::cuMemGetAllocationPropertiesFromHandle>()(properties, handle);
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    const auto give = [=](CUmemGenericAllocationHandle driver_handle) {
        return real<Entry::cuMemExportToShareableHandle>()(shareable, driver_handle, type, flags);
    };
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !intercepts())
        return use_handle(handle, intercepted::k_exported, give);
    return agent::sharing::export_handle(handle, static_cast<const int*>(shareable), give);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
    const bool is_file = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && intercepts();
    const auto descriptor = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
    if (is_file)
        if (const auto answer = agent::sharing::import_handle(handle, descriptor)) return *answer;
    const auto import = [=] {
        return real<Entry::cuMemImportFromShareableHandle>()(handle, shareable, type);
    };
    const auto done = is_file ? agent::sharing::import_unseen(handle, descriptor, import) : import();
    const auto status = noted(
        done, [=] { registry::books().residual.handle_shared(*handle, intercepted::k_of_another_process); });
    return with_reference(status, handle);
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle group, std::size_t group_offset,
                            CUmemGenericAllocationHandle handle, std::size_t offset, std::size_t bytes,
                            unsigned long long flags) {
    return use_handle(handle, intercepted::k_in_multicast_group,
                      [=](CUmemGenericAllocationHandle driver_handle) {
                          return real<Entry::cuMulticastBindMem>()(group, group_offset, driver_handle, offset,
                                                                   bytes, flags);
                      });
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle group, std::size_t group_offset,
                             CUdeviceptr address, std::size_t bytes, unsigned long long flags) {
    return made_to_stay(real<Entry::cuMulticastBindAddr>()(group, group_offset, address, bytes, flags),
                        address, bytes, intercepted::k_in_multicast_group);
}

CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, std::size_t bytes,
                                       CUmemRangeHandleType type, unsigned long long flags) {
    return made_to_stay(real<Entry::cuMemGetHandleForAddressRange>()(handle, address, bytes, type, flags),
                        address, bytes, "shared with other devices");
}

namespace {

/// Sparse arrays take the driver's handles.
template <Entry entry>
CUresult map_arrays(CUarrayMapInfo* maps, unsigned count, CUstream stream) {
    const auto call = [=](CUarrayMapInfo* all) { return real<entry>()(all, count, stream); };
    return intercepts() && maps ? intercepted::map_arrays(maps, count, call) : call(maps);
}

} // namespace

GPU_SLEEP_SHARE(map_arrays, map_arrays)

} // namespace gpu_sleep::hooks::own
