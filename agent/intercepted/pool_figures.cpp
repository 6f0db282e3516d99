// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What pools say of themselves: what we have of them and what the driver has, as one sum.

#include "intercepted/pool_figures.hpp"

#include "intercepted/captures.hpp"
#include "intercepted/idle_ranges.hpp"
#include "intercepted/pool_peaks.hpp"

namespace gpu_sleep::agent::intercepted {

void pool_left_to_driver(CUmemoryPool handle) noexcept {
    with_pools([&](Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
        const auto found = all.pools.find(handle);
        if (found == all.pools.end()) return;
        found->second->is_mixed = true;
        if (found->second->is_counted) note_peaks(memory, *found->second);
    });
}

void add_pool_figures(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) noexcept {
    if (!value) return;
    with_pools([&](Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
        const auto found = all.pools.find(handle);
        if (found == all.pools.end() || !found->second->is_counted) return;
        // What has to be gone since the last synchronise is gone before anybody sees it.
        if (all.is_due && captures_open() == 0) trim_excess(all, memory);
        const auto& ours = found->second->figures;
        auto& figure = *static_cast<cuuint64_t*>(value);
        switch (attribute) {
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: figure += ours.reserved; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: figure = ours.reserved_high; break;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: figure += ours.used; break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: figure = ours.used_high; break;
        default: break;
        }
    });
}

} // namespace gpu_sleep::agent::intercepted
