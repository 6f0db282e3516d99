// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which ranges are idle, and giving them back.

#include "intercepted/idle_ranges.hpp"

#include "intercepted/pool_peaks.hpp"
#include "intercepted/spares.hpp"
#include "intercepted/state.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace gpu_sleep::agent::intercepted {
namespace {

/// Whether nobody uses anything of the range, as far as `free_calls`.
bool is_idle(Pools& all, ProgramMemory& memory, const Range& range, std::uint64_t free_calls)
    GPU_SLEEP_REQUIRES(all.mutex) {
    if (range.live != 0) return false;
    const auto first = all.blocks.find(range.address);
    for (auto at = first; at != all.blocks.end() && at->second.range == &range; ++at)
        if (at->second.is_held || at->second.last_use.free_call > free_calls) return false;
    for (auto at = first; at != all.blocks.end() && at->second.range == &range; ++at)
        if (!note_if_done(memory, at->second.last_use)) return false;
    return true;
}

void give_back(Pools& all, ProgramMemory& memory, std::map<CUdeviceptr, Range>::iterator range)
    GPU_SLEEP_REQUIRES(all.mutex) {
    const auto pool = range->second.pool;
    for (auto at = all.blocks.find(range->first);
         at != all.blocks.end() && at->second.range == &range->second;) {
        pool->spares.erase({at->second.bytes, at->first});
        at = all.blocks.erase(at);
    }
    pool->figures.reserved -= range->second.bytes;
    --pool->unused_ranges;
    pool->most_used = std::max(pool->figures.used, pool->figures.reserved);
    const auto address = range->first;
    all.ranges.erase(range);
    give_range(memory, address);
}

} // namespace

bool is_excess(ProgramMemory& memory, const Range& range) noexcept {
    const auto& pool = *range.pool;
    return pool.is_gone || pool.figures.reserved > pool.threshold ||
           (pool.is_mixed &&
            pool.figures.reserved + figures_of_driver(memory, pool).reserved > pool.threshold);
}

void give_back_idle(Pools& all, ProgramMemory& memory, bool is_synchronized,
                    const std::function<bool(const Range&)>& wanted) GPU_SLEEP_REQUIRES(all.mutex) {
    const auto free_calls = is_synchronized ? all.synchronized_to.load() : ~std::uint64_t{0};
    for (auto next = all.ranges.begin(); next != all.ranges.end();) {
        const auto range = next++;
        if (range->second.live == 0 && wanted(range->second) &&
            is_idle(all, memory, range->second, free_calls))
            give_back(all, memory, range);
    }
}

void finish_pending_frees(Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
    std::erase_if(all.pending_frees, [&](PendingFree& block) {
        if (!note_if_done(memory, block.last_use)) return false;
        give_range(memory, block.address);
        return true;
    });
    if (!all.pending_frees.empty()) all.has_excess = true;
}

void trim_all(Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
    all.is_due = false;
    give_back_idle(all, memory, false, [](const Range&) { return true; });
    finish_pending_frees(all, memory);
}

void trim_excess(Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
    all.is_due = false;
    give_back_idle(all, memory, true, [&](const Range& range) { return is_excess(memory, range); });
    // Only now: who synchronises meanwhile has to find that there is something to give back.
    all.has_excess = std::any_of(all.ranges.begin(), all.ranges.end(), [&](const auto& entry) {
        return entry.second.live == 0 && is_excess(memory, entry.second); // not done, or not waited for
    });
    finish_pending_frees(all, memory);
}

} // namespace gpu_sleep::agent::intercepted
