// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking all parts for what stays.

#include "intercepted/residual.hpp"

#include "common/interception.hpp"
#include "intercepted/ipc.hpp"
#include "intercepted/state.hpp"
#include "intercepted/virtual_memory.hpp"
#include "model/model.hpp"

namespace gpu_sleep::agent::intercepted {
namespace {

/// Adds the memory that the driver holds for the memory nodes of graphs.
void add_graph_memory(std::vector<Residual>& sums) {
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
            add_to_sum(sums, {"graph", device, bytes, 1, "the driver owns graph node memory"});
    }
}

/// Adds ranges and handles of the program whose memory cannot sleep.
void add_memory_that_stays(const LockedMemory& locked, std::vector<Residual>& sums) {
    if (!memory()) return; // the process is ending
    for (const auto& [address, backing] : locked.ledger().backings())
        if (backing.stay_reason)
            add_to_sum(sums, {backing.host_backed                      ? model::k_residual_of_host
                              : backing.stay_reason == k_shared_by_ipc ? "ipc"
                                                                       : "pinned",
                              backing.device, backing.bytes, 1, backing.stay_reason});
    add_handles_that_stay(sums);
}

} // namespace

std::vector<Residual> residual(const LockedMemory& locked) noexcept {
    std::vector<Residual> sums;
    ignoring_errors([&] {
        add_residual_records(sums);
        add_allocations_of_driver(sums);
        add_memory_that_stays(locked, sums);
        if (intercepts()) add_graph_memory(sums);
    });
    return sums;
}

} // namespace gpu_sleep::agent::intercepted
