// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The sum.

#include "intercepted/residual.hpp"

#include "intercepted/left.hpp"
#include "intercepted/must_stay.hpp"
#include "intercepted/state.hpp"

namespace gpu_sleep::agent::intercepted {
namespace {

/// What the driver holds for the memory nodes of graphs.
void add_graph_memory(std::vector<Residual>& rows) {
    const auto with = memory();
    if (!with || !with->may_call_driver() || !with->api().cuDeviceGetGraphMemAttribute) return;
    int devices = 0;
    if (with->api().cuDeviceGetCount(&devices) != CUDA_SUCCESS) return;
    for (int device = 0; device < devices; ++device) {
        unsigned flags = 0;
        int is_active = 0;
        cuuint64_t bytes = 0;
        if (with->api().cuDevicePrimaryCtxGetState(device, &flags, &is_active) != CUDA_SUCCESS || !is_active)
            continue;
        if (with->api().cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                                     &bytes) == CUDA_SUCCESS &&
            bytes != 0)
            rows.push_back({"graph", device, bytes, 1, "memory of graph nodes is the driver's"});
    }
}

} // namespace

std::vector<Residual> residual(const LockedMemory& locked) noexcept {
    std::vector<Residual> rows;
    ignoring_errors([&] {
        add_residents(rows);
        add_left(rows);
        add_memory_that_stays(locked, rows);
        add_graph_memory(rows);
    });
    std::vector<Residual> sums;
    ignoring_errors([&] {
        for (const auto& row : rows) add_to_sum(sums, row);
    });
    return sums;
}

} // namespace gpu_sleep::agent::intercepted
