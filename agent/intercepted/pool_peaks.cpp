// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The peaks of pools.

#include "intercepted/pool_peaks.hpp"

#include "intercepted/captures.hpp"
#include "intercepted/idle_ranges.hpp"

#include <algorithm>

namespace gpu_sleep::agent::intercepted {

PoolFigures figures_of_driver(ProgramMemory& memory, const Pool& pool) noexcept {
    PoolFigures figures;
    if (pool.is_gone || !memory.api().cuMemPoolGetAttribute) return figures;
    const auto ask = [&](CUmemPool_attribute attribute, Bytes& figure) {
        cuuint64_t value = 0;
        if (memory.api().cuMemPoolGetAttribute(pool.handle, attribute, &value) == CUDA_SUCCESS)
            figure = value;
    };
    ask(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, figures.used);
    ask(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, figures.reserved);
    ask(CU_MEMPOOL_ATTR_USED_MEM_HIGH, figures.used_high);
    ask(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, figures.reserved_high);
    return figures;
}

void note_peaks(ProgramMemory& memory, Pool& pool) noexcept {
    auto& ours = pool.figures;
    const auto theirs = pool.is_mixed ? figures_of_driver(memory, pool) : PoolFigures();
    ours.used_high = std::max(ours.used_high, ours.used + theirs.used);
    ours.reserved_high = std::max(ours.reserved_high, ours.reserved + theirs.reserved);
}

void reset_peak(Pools& all, ProgramMemory& memory, Pool& pool, CUmemPool_attribute attribute)
    GPU_SLEEP_REQUIRES(all.mutex) {
    if (!pool.is_counted) return;
    if (all.is_due && captures_open() == 0) trim_excess(all, memory);
    if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool.figures.used_high = 0;
    if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) pool.figures.reserved_high = 0;
    note_peaks(memory, pool);
}

} // namespace gpu_sleep::agent::intercepted
