// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory of the program's that has to stay where it is: shared, bound to a group, registered or mapped twice.

#include "caught/handles.hpp"
#include "caught/residual.hpp"
#include "caught/share.hpp"

#include <algorithm>
#include <mutex>

namespace gpu_sleep::agent::caught {

bool pin(const Agent::Memory& memory, Handles& all, Handle& handle, const char* reason) {
    if (any_sleeps(memory, all, handle.mappings)) return false;
    for (const auto address : handle.mappings) strike_off(memory, all, address, all.mappings.at(address));
    if (!handle.pinned) handle.pinned = reason;
    return true;
}

std::optional<CUmemGenericAllocationHandle> real_handle_for(CUmemGenericAllocationHandle handle,
                                                            const char* reason) noexcept {
    std::optional real = handle;
    noted([&] {
        const auto with = memory();
        if (!with) return;
        auto& all = Handles::instance();
        const std::lock_guard memory_lock(with->mutex);
        const std::lock_guard lock(all.mutex);
        auto* mine = find_handle(all, handle);
        if (!mine) return;
        real.reset();
        if (pin(*with, all, *mine, reason)) real = mine->real;
    });
    return real;
}

CUresult map_arrays(const CUarrayMapInfo* maps, unsigned count,
                    const std::function<CUresult(CUarrayMapInfo*)>& map) noexcept {
    std::vector<CUarrayMapInfo> ours;
    const auto copied = guarded([&]() -> Result<void> {
        ours.assign(maps, maps + count);
        return {};
    });
    if (!copied) return CUDA_ERROR_OUT_OF_MEMORY;
    for (auto& each : ours)
        if (each.memHandleType == CU_MEM_HANDLE_TYPE_GENERIC) {
            const auto driver_handle =
                real_handle_for(each.memHandle.memHandle, "mapped into a sparse array");
            if (!driver_handle) return k_sleeps;
            each.memHandle.memHandle = *driver_handle;
        }
    return map(ours.data());
}

bool pin_span(CUdeviceptr address, std::size_t bytes, const char* reason) noexcept {
    bool is_done = true;
    noted([&] {
        const auto with = memory();
        if (!with) return;
        auto& all = Handles::instance();
        const std::lock_guard memory_lock(with->mutex);
        const std::lock_guard lock(all.mutex);
        const auto for_each = [&](const auto& body) {
            for (auto at = address; at < address + bytes;) {
                auto* backing = with->ledger.find(at);
                if (!backing) break;
                at = backing->end();
                body(*backing);
            }
        };
        for_each([&](const ledger::Backing& backing) { is_done &= !backing.is_asleep(); });
        if (!is_done) return;
        for_each([&](ledger::Backing& backing) {
            const auto mapping = all.mappings.find(backing.address);
            auto* const handle =
                mapping == all.mappings.end() ? nullptr : find_handle(all, mapping->second.handle);
            if (handle)
                pin(*with, all, *handle, reason);
            else if (!backing.pinned)
                backing.pinned = reason;
        });
    });
    return is_done;
}

void add_pinned_handles(std::vector<Residual>& rows) {
    const auto with = memory();
    if (!with) return;
    for (const auto& [address, backing] : with->ledger.backings())
        if (backing.pinned)
            rows.push_back({backing.pinned == k_shared_by_ipc ? "ipc" : "pinned", backing.device,
                            backing.bytes, 1, backing.pinned});
    auto& all = Handles::instance();
    const std::lock_guard lock(all.mutex);
    for (const auto& [number, handle] : all.handles) {
        const bool is_enlisted = std::any_of(handle.mappings.begin(), handle.mappings.end(),
                                             [&](CUdeviceptr at) { return all.mappings.at(at).enlisted; });
        if (is_enlisted) continue;
        const char* reason = handle.pinned ? handle.pinned
                             : handle.mappings.empty()
                                 ? "made, but not mapped"
                                 : "mapped in part, or without access for its own device";
        rows.push_back({"virtual", handle.properties.location.id, handle.bytes, 1, reason});
    }
}

} // namespace gpu_sleep::agent::caught
