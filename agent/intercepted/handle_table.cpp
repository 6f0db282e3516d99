// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding handles, and moving mappings between the table and the ledger.

#include "intercepted/handle_table.hpp"

#include "intercepted/allocations.hpp"

#include <algorithm>

namespace gpu_sleep::agent::intercepted {

Handle* find_handle(Handles& all, std::uint64_t number) GPU_SLEEP_REQUIRES(all.mutex) {
    const auto found = all.handles.find(number);
    return found == all.handles.end() ? nullptr : &found->second;
}

void release_if_unused(ProgramMemory& memory, Handles& all, std::uint64_t number)
    GPU_SLEEP_REQUIRES(all.mutex) {
    auto* handle = find_handle(all, number);
    if (!handle || handle->references != 0 || !handle->mappings.empty()) return;
    memory.api().cuMemRelease(handle->real);
    all.handles.erase(number);
}

bool sleeps(const LockedMemory& memory, CUdeviceptr address, const Mapping& mapping) {
    const auto* const backing = mapping.in_ledger ? memory.ledger().find(address) : nullptr;
    return backing && backing->is_asleep();
}

bool any_sleeps(const LockedMemory& memory, const Handles& all, const std::vector<CUdeviceptr>& mappings)
    GPU_SLEEP_REQUIRES(all.mutex) {
    return std::any_of(mappings.begin(), mappings.end(), [&](CUdeviceptr at) GPU_SLEEP_REQUIRES(all.mutex) {
        return sleeps(memory, at, all.mappings.at(at));
    });
}

std::optional<CUmemGenericAllocationHandle> real_handle(const LockedMemory& memory, const Handles& all,
                                                        const Handle& handle) GPU_SLEEP_REQUIRES(all.mutex) {
    for (const auto at : handle.mappings) {
        const auto* const backing = all.mappings.at(at).in_ledger ? memory.ledger().find(at) : nullptr;
        if (backing) return backing->is_asleep() ? std::nullopt : std::optional(backing->handle);
    }
    return handle.real;
}

bool take_from_ledger(LockedMemory& memory, Handles& all, CUdeviceptr address, Mapping& mapping)
    GPU_SLEEP_REQUIRES(all.mutex) {
    if (!mapping.in_ledger) return true;
    if (sleeps(memory, address, mapping)) return false;
    const auto removed = memory.remove_mapping(address);
    mapping.in_ledger = false;
    if (auto* handle = find_handle(all, mapping.handle)) {
        handle->real = removed.handle;
        handle->host_backed = removed.host_backed;
    }
    static_cast<void>(immortal<Allocations>().take(address));
    return true;
}

bool make_stay(LockedMemory& memory, Handles& all, Handle& handle, const char* reason)
    GPU_SLEEP_REQUIRES(all.mutex) {
    if (any_sleeps(memory, all, handle.mappings)) return false;
    for (const auto address : handle.mappings)
        take_from_ledger(memory, all, address, all.mappings.at(address));
    if (!handle.stay_reason) handle.stay_reason = reason;
    return true;
}

} // namespace gpu_sleep::agent::intercepted
