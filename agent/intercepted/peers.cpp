// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which devices reach the intercepted memory of which: plain memory is reached by copies from every device,
// and by kernels once the program has asked for it, while ours is reached only where it was granted.

#include "intercepted/peers.hpp"

#include "driver/context.hpp"
#include "intercepted/calls.hpp"

namespace gpu_sleep::agent::intercepted {
namespace {

/// Lets `devices` at the range of `address`. Whether that was new.
bool grant(ProgramMemory& memory, driver::DeviceMask devices, int owner, CUdeviceptr address) {
    bool is_new = false;
    for (int device = 0; device < driver::k_max_devices; ++device) {
        if (device == owner || !(devices >> device & 1)) continue;
        const auto allowed = memory.allow_access(address, device);
        is_new |= allowed && *allowed;
        if (!allowed && allowed.error().code != ErrorCode::not_owned) // it may have been freed
            log::warning("GPU {} cannot be given access to {:#x}: {}", device, address,
                         allowed.error().message);
    }
    return is_new;
}

driver::DeviceMask devices_in_use(ProgramMemory& memory) {
    driver::DeviceMask mask = 0;
    int devices = 0;
    if (memory.api().cuDeviceGetCount(&devices) != CUDA_SUCCESS) devices = 0;
    for (int device = 0; device < std::min(devices, driver::k_max_devices); ++device) {
        if (is_primary_active(memory.api(), device) || !books().contexts.made_on(device).empty())
            mask |= driver::DeviceMask{1} << device;
    }
    if (const auto current = current_device(memory)) mask |= driver::DeviceMask{1} << *current;
    return mask;
}

} // namespace

void grant_peers(ProgramMemory& memory, int device, CUdeviceptr address) {
    auto& access = books().peers;
    driver::DeviceMask devices = 0;
    {
        const MutexLock lock(access.mutex);
        devices = access.accessors[static_cast<std::size_t>(device)];
    }
    if (devices != 0) static_cast<void>(grant(memory, devices, device, address));
}

CUresult access_of(const Allocation& known, const CUmemLocation& location, CUresult status,
                   unsigned long long& flags) noexcept {
    const bool is_awake = status == CUDA_SUCCESS;
    if (!is_awake && status != CUDA_ERROR_INVALID_VALUE) return status;
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        if (!is_awake) flags = CU_MEM_ACCESS_FLAGS_PROT_NONE; // what the host may reach does not sleep
        return CUDA_SUCCESS;
    }
    if (!is_awake) {
        const auto with = memory();
        int devices = 0;
        if (!with || with->api().cuDeviceGetCount(&devices) != CUDA_SUCCESS) return status;
        if (location.id < 0 || location.id >= std::min(devices, driver::k_max_devices))
            return CUDA_ERROR_INVALID_DEVICE;
    }
    // The driver's own plain memory has none to tell of; and what is on its way back has none yet.
    if (!known.is_virtual)
        flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    else if (!is_awake || flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        flags = (known.access >> location.id & 1) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                       : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

void peer_access_enabled(CUcontext peer) noexcept {
    with_memory([&](ProgramMemory& memory) {
        const auto accessor = current_device(memory);
        std::optional<int> owner;
        {
            const driver::CurrentContext current(memory.api(), peer);
            if (current.status() == CUDA_SUCCESS) owner = current_device(memory);
        }
        if (!accessor || !owner || *owner >= driver::k_max_devices || *accessor >= driver::k_max_devices)
            return;
        const auto mask = driver::DeviceMask{1} << *accessor;
        auto& access = books().peers;
        {
            const MutexLock lock(access.mutex);
            access.accessors[static_cast<std::size_t>(*owner)] |= mask;
        }
        const auto theirs = books().allocations.all(
            [&](const Allocation& a) { return a.device == *owner && !a.is_virtual && !a.pool; });
        for (const auto& allocation : theirs)
            static_cast<void>(grant(memory, mask, *owner, allocation.address));
    });
}

bool let_copies_reach(const gate::Inspector& copy) noexcept {
    bool is_new = false;
    with_memory([&](ProgramMemory& memory) {
        const driver::RelaxedCaptureMode relaxed(memory.api());
        for (const auto& span : copy.inspect().spans) {
            const auto known = books().allocations.find(span.begin);
            if (!known || known->is_virtual || known->pool)
                continue; // the program grants access to those itself
            is_new |= grant(memory, devices_in_use(memory), known->device, known->address);
        }
    });
    return is_new;
}

} // namespace gpu_sleep::agent::intercepted
