// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What others than CUDA, or all devices, have a part in: external memory and semaphores, multicast groups.
// They are made and destroyed; nobody else is at the other end.

#include "support/simulated_driver/contexts.hpp"

namespace gpu_sleep::sim {
namespace {

struct OutsideObject {};

/// Those of a kind of handle. Guarded by the driver's lock.
template <class Handle>
HandleTable<Handle, OutsideObject>& outside_objects(std::uint64_t kind) {
    static auto& table = *new HandleTable<Handle, OutsideObject>(kind);
    return table;
}
HandleTable<CUexternalMemory, OutsideObject>& external_memories() {
    return outside_objects<CUexternalMemory>(13);
}
HandleTable<CUexternalSemaphore, OutsideObject>& external_semaphores() {
    return outside_objects<CUexternalSemaphore>(14);
}
HandleTable<CUmemGenericAllocationHandle, OutsideObject>& multicast_groups() {
    return outside_objects<CUmemGenericAllocationHandle>(16);
}

template <class Handle>
CUresult make_outside(HandleTable<Handle, OutsideObject>& table, Handle* handle, const void* description) {
    if (!handle || !description) return CUDA_ERROR_INVALID_VALUE;
    *handle = table.insert(std::make_shared<OutsideObject>());
    return CUDA_SUCCESS;
}

template <class Handle>
CUresult destroy_outside(HandleTable<Handle, OutsideObject>& table, Handle handle) {
    return table.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

} // namespace
} // namespace gpu_sleep::sim

SIM_ENTRY(safe, 10000)
cuImportExternalMemory(Call&, Context&, CUexternalMemory* handle,
                       const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* description) {
    return make_outside(external_memories(), handle, description);
}

SIM_ENTRY(safe, 10000) cuDestroyExternalMemory(Call&, Context&, CUexternalMemory handle) {
    return destroy_outside(external_memories(), handle);
}

SIM_ENTRY(safe, 10000)
cuImportExternalSemaphore(Call&, Context&, CUexternalSemaphore* handle,
                          const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC* description) {
    return make_outside(external_semaphores(), handle, description);
}

SIM_ENTRY(safe, 10000) cuDestroyExternalSemaphore(Call&, Context&, CUexternalSemaphore handle) {
    return destroy_outside(external_semaphores(), handle);
}

SIM_ENTRY(safe, 12010)
cuMulticastCreate(Call&, CUmemGenericAllocationHandle* handle, const CUmulticastObjectProp* properties) {
    return make_outside(multicast_groups(), handle, properties);
}

SIM_ENTRY(safe, 12010)
cuMulticastBindAddr(Call& c, CUmemGenericAllocationHandle group, std::size_t, CUdeviceptr address,
                    std::size_t, unsigned long long) {
    const bool is_known = multicast_groups().find(group) && c.driver.space.find(address);
    return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
