// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that is shared, bound to a group, registered or mapped twice stays. The sum is of what all parts
// know.

#include "intercepted/residual.hpp"

#include "base/thread_safety.hpp"
#include "common/interception.hpp"
#include "intercepted/handle_table.hpp"
#include "intercepted/ipc.hpp"
#include "intercepted/left.hpp"
#include "intercepted/mappings.hpp"
#include "intercepted/state.hpp"
#include "model/model.hpp"

#include <algorithm>

namespace gpu_sleep::agent::intercepted {
namespace {

/// The driver's handle behind the program's, or the handle itself when it is none of ours; nothing when its
/// memory sleeps.
std::optional<CUmemGenericAllocationHandle> real_handle_of(CUmemGenericAllocationHandle handle) noexcept {
    std::optional real = handle;
    with_memory([&](ProgramMemory& memory) {
        memory.with_lock([&](const LockedMemory& locked) {
            auto& all = immortal<Handles>();
            const MutexLock lock(all.mutex);
            if (const auto* mine = find_handle(all, handle)) real = real_handle(locked, all, *mine);
        });
    });
    return real;
}

void make_handle_stay(CUmemGenericAllocationHandle handle, const char* reason) noexcept {
    with_memory([&](ProgramMemory& memory) {
        memory.with_lock([&](LockedMemory& locked) {
            auto& all = immortal<Handles>();
            const MutexLock lock(all.mutex);
            if (auto* mine = find_handle(all, handle))
                make_stay(locked, all, *mine, reason);
            else if (reason == k_exported)
                handle_shared(handle, reason);
        });
    });
}

/// What the driver holds for the memory nodes of graphs.
void add_graph_memory(std::vector<Residual>& rows) {
    const auto with = memory();
    if (!with || !with->may_call_driver() || !with->api().cuDeviceGetGraphMemAttribute) return;
    int devices = 0;
    if (with->api().cuDeviceGetCount(&devices) != CUDA_SUCCESS) return;
    for (int device = 0; device < devices; ++device) {
        cuuint64_t bytes = 0;
        if (!is_primary_active(with->api(), device)) continue;
        if (with->api().cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                                     &bytes) == CUDA_SUCCESS &&
            bytes != 0)
            rows.push_back({"graph", device, bytes, 1, "the driver owns graph node memory"});
    }
}

/// Ranges, and handles of the program, whose memory cannot sleep.
void add_memory_that_stays(const LockedMemory& locked, std::vector<Residual>& rows) {
    if (!memory()) return; // the process is ending
    for (const auto& [address, backing] : locked.ledger().backings())
        if (backing.stay_reason)
            rows.push_back({backing.host_backed                      ? model::k_residual_of_host
                            : backing.stay_reason == k_shared_by_ipc ? "ipc"
                                                                     : "pinned",
                            backing.device, backing.bytes, 1, backing.stay_reason});
    auto& all = immortal<Handles>();
    const MutexLock lock(all.mutex);
    for (const auto& [number, handle] : all.handles) {
        const bool is_in_ledger = std::any_of(
            handle.mappings.begin(), handle.mappings.end(),
            [&](CUdeviceptr at) GPU_SLEEP_REQUIRES(all.mutex) { return all.mappings.at(at).in_ledger; });
        if (is_in_ledger) continue;
        const char* reason = handle.stay_reason ? handle.stay_reason
                             : handle.mappings.empty()
                                 ? "created, but not mapped"
                                 : "mapped in part, or without access for its own device";
        rows.push_back({handle.host_backed ? model::k_residual_of_host : "virtual",
                        handle.properties.location.id, handle.bytes, 1, reason});
    }
}

} // namespace

CUresult use_handle(CUmemGenericAllocationHandle handle, const char* reason,
                    const std::function<CUresult(CUmemGenericAllocationHandle)>& use) noexcept {
    const auto real = real_handle_of(handle);
    if (!real) return k_sleeps;
    const auto status = use(*real);
    if (status == CUDA_SUCCESS) make_handle_stay(handle, reason);
    return status;
}

CUresult map_arrays(const CUarrayMapInfo* maps, unsigned count,
                    const std::function<CUresult(CUarrayMapInfo*)>& map) noexcept {
    std::vector<CUarrayMapInfo> ours;
    const auto copied = guarded([&] { ours.assign(maps, maps + count); });
    if (!copied) return CUDA_ERROR_OUT_OF_MEMORY;
    for (auto& each : ours) {
        if (each.memHandleType != CU_MEM_HANDLE_TYPE_GENERIC) continue;
        const auto real = real_handle_of(each.memHandle.memHandle);
        if (!real) return k_sleeps;
        each.memHandle.memHandle = *real;
    }
    const auto status = map(ours.data());
    for (unsigned i = 0; status == CUDA_SUCCESS && i < count; ++i)
        if (maps[i].memHandleType == CU_MEM_HANDLE_TYPE_GENERIC)
            make_handle_stay(maps[i].memHandle.memHandle, "mapped into a sparse array");
    return status;
}

void make_span_stay(CUdeviceptr address, std::size_t bytes, const char* reason) noexcept {
    with_memory([&](ProgramMemory& memory) {
        memory.with_lock([&](LockedMemory& locked) {
            auto& all = immortal<Handles>();
            const MutexLock lock(all.mutex);
            for (auto at = address; at < address + bytes;) {
                const auto* const backing = locked.ledger().find(at);
                if (!backing) break;
                const auto begin = backing->address;
                at = backing->end();
                const auto mapping = all.mappings.find(begin);
                auto* const handle =
                    mapping == all.mappings.end() ? nullptr : find_handle(all, mapping->second.handle);
                if (handle)
                    make_stay(locked, all, *handle, reason);
                else
                    locked.make_stay(begin, reason);
            }
        });
    });
}

std::vector<Residual> residual(const LockedMemory& locked) noexcept {
    std::vector<Residual> rows;
    ignoring_errors([&] {
        add_residents(rows);
        add_left(rows);
        add_memory_that_stays(locked, rows);
        if (intercepts()) add_graph_memory(rows);
    });
    std::vector<Residual> sums;
    ignoring_errors([&] {
        for (const auto& row : rows) add_to_sum(sums, row);
    });
    return sums;
}

} // namespace gpu_sleep::agent::intercepted
