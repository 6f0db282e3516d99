// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What pools say of themselves.

#include "intercepted/pool_table.hpp"

#include <algorithm>

namespace gpu_sleep::agent::intercepted {

void add_pool_figures(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) noexcept {
    if (!value) return;
    with_pools([&](Pools& all, ProgramMemory&) GPU_SLEEP_REQUIRES(all.mutex) {
        const auto found = all.pools.find(handle);
        if (found == all.pools.end()) return;
        const auto& ours = found->second->figures;
        auto& figure = *static_cast<cuuint64_t*>(value);
        switch (attribute) {
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: figure += ours.reserved; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: figure = std::max(figure, ours.reserved_high); break;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: figure += ours.used; break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: figure = std::max(figure, ours.used_high); break;
        default: break;
        }
    });
}

void pool_left_to_driver(CUmemoryPool handle) noexcept {
    with_pools([&](Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
        const auto found = all.pools.find(handle);
        if (found == all.pools.end()) return;
        found->second->is_mixed = true;
        note_peaks(memory, *found->second);
    });
}

Bytes figure_of_driver(ProgramMemory& memory, const Pool& pool, CUmemPool_attribute attribute) noexcept {
    cuuint64_t value = 0;
    const auto get = memory.api().cuMemPoolGetAttribute;
    const bool may_ask = get && pool.is_mixed && !pool.is_gone;
    return may_ask && get(pool.handle, attribute, &value) == CUDA_SUCCESS ? value : 0;
}

Bytes reserved_in_all(ProgramMemory& memory, const Pool& pool) noexcept {
    return pool.figures.reserved + figure_of_driver(memory, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

void note_peaks(ProgramMemory& memory, Pool& pool) noexcept {
    auto& ours = pool.figures;
    const auto used = ours.used + figure_of_driver(memory, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    ours.used_high = std::max(ours.used_high, used);
    ours.reserved_high = std::max(ours.reserved_high, reserved_in_all(memory, pool));
}

} // namespace gpu_sleep::agent::intercepted
