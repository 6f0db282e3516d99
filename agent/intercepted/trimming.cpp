// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// When pools give ranges back: at a synchronise, a trim, when memory is short, and with the contexts that
// their blocks were freed in.

#include "intercepted/trimming.hpp"

#include "base/thread_safety.hpp"
#include "driver/context.hpp"
#include "intercepted/captures.hpp"
#include "intercepted/event_cache.hpp"
#include "intercepted/spares.hpp"
#include "intercepted/state.hpp"
#include "intercepted/taken.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gpu_sleep::agent::intercepted {
namespace {

/// How long what was freed before a synchronise may stay, if another synchronise gives it back: programs that
/// synchronise after every step would make and release the same ranges again and again, 54 us for each 2 MiB
/// (interception_bench, "in stream order"). Whoever asks meanwhile is answered as if it were gone: it goes
/// then.
constexpr Milliseconds k_between{10};
/// When it goes if there is none.
constexpr Milliseconds k_by_itself{50};

/// Whether nobody uses anything of the range, as far as `free_calls`.
bool is_idle(Pools& all, ProgramMemory& memory, const Range& range, std::uint64_t free_calls)
    GPU_SLEEP_REQUIRES(all.mutex) {
    if (range.live != 0) return false;
    const auto first = all.blocks.find(range.address);
    for (auto at = first; at != all.blocks.end() && at->second.range == &range; ++at)
        if (at->second.is_held || at->second.last_use.free_call > free_calls) return false;
    for (auto at = first; at != all.blocks.end() && at->second.range == &range; ++at)
        if (!settle(memory, at->second.last_use)) return false;
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

void tidy_later() noexcept {
    if (const auto* const with = memory()) with->tidy_within(k_by_itself);
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

void trim_leaving(Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
    std::erase_if(all.leaving, [&](LeavingBlock& block) {
        if (!settle(memory, block.last_use)) return false;
        give_range(memory, block.address);
        return true;
    });
    if (!all.leaving.empty()) all.has_excess = true;
}

void trim_all(Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
    all.is_due = false;
    give_back_idle(all, memory, false, [](const Range&) { return true; });
    trim_leaving(all, memory);
}

void trim_excess(Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
    all.is_due = false;
    give_back_idle(all, memory, true, [&](const Range& range) { return is_excess(memory, range); });
    // Only now: who synchronises meanwhile has to find that there is something to give back.
    all.has_excess = std::any_of(all.ranges.begin(), all.ranges.end(), [&](const auto& entry) {
        return entry.second.live == 0 && is_excess(memory, entry.second); // not done, or not waited for
    });
    trim_leaving(all, memory);
}

void synchronized() noexcept {
    auto& all = Pools::instance();
    const auto free_calls = all.free_calls.load(std::memory_order_relaxed);
    for (auto to = all.synchronized_to.load(std::memory_order_relaxed); to < free_calls;)
        if (all.synchronized_to.compare_exchange_weak(to, free_calls)) break;
    if (!all.has_excess.load(std::memory_order_relaxed)) return;
    all.is_due = true;
    const auto now = Clock::now();
    if (captures_open() != 0 || now < all.next_trim.load(std::memory_order_relaxed)) return tidy_later();
    all.next_trim.store(now + k_between, std::memory_order_relaxed);
    give_back_due();
}

void give_back_due() noexcept {
    auto& all = Pools::instance();
    if (!all.is_due.load(std::memory_order_relaxed)) return;
    if (captures_open() != 0) return tidy_later();
    with_pools([](Pools& pools, ProgramMemory& memory)
                   GPU_SLEEP_REQUIRES(pools.mutex) { trim_excess(pools, memory); });
}

void trim() noexcept {
    with_pools([](Pools& all, ProgramMemory& memory)
                   GPU_SLEEP_REQUIRES(all.mutex) { trim_all(all, memory); });
}

Taken take_pools_of(ProgramMemory& memory, CUcontext context) {
    auto& all = Pools::instance();
    std::vector<LeavingBlock> leaving;
    const auto is_of = [=](const LastUse& last_use) {
        return last_use.done && last_use.freed_in.context == context;
    };
    {
        const MutexLock lock(all.mutex);
        for (const auto& block : all.leaving)
            if (is_of(block.last_use)) leaving.push_back(block);
        for (auto& [address, block] : all.blocks) block.is_held |= !block.is_live && is_of(block.last_use);
        std::erase_if(all.leaving, [&](const LeavingBlock& block) { return is_of(block.last_use); });
    }
    const auto events = EventCache::instance().take_all_of(context);
    const auto let_go = [=, &all](bool is_gone) GPU_SLEEP_REQUIRES(all.mutex) {
        for (auto& [address, block] : all.blocks) {
            if (!block.is_held || block.last_use.freed_in.context != context) continue;
            block.is_held = false;
            if (is_gone) block.last_use = {}; // with the context its work is over, and its events are gone
        }
    };
    auto gone = [=, &all, &memory] {
        const driver::RelaxedCaptureMode relaxed(memory.api());
        for (const auto& block : leaving) give_range(memory, block.address);
        const MutexLock lock(all.mutex);
        let_go(true);
        trim_excess(all, memory);
    };
    auto stays = [=, &all] {
        EventCache::instance().put_back(context, events);
        const MutexLock lock(all.mutex);
        let_go(false);
        all.leaving.insert(all.leaving.end(), leaving.begin(), leaving.end());
        all.has_excess = true;
    };
    return {std::move(gone), std::move(stays)};
}

void forget_order_of(CUstream stream) {
    auto& all = Pools::instance();
    const MutexLock lock(all.mutex);
    for (auto& [address, block] : all.blocks)
        block.last_use.in_order &= block.last_use.freed_in.stream != stream;
}

void forget_order_of(CUcontext green, CUcontext primary) {
    auto& all = Pools::instance();
    const MutexLock lock(all.mutex);
    const auto hand_over = [&](LastUse& last_use) {
        if (last_use.freed_in.context != green) return;
        last_use.freed_in.context = primary;
        last_use.in_order = false;
    };
    for (auto& [address, block] : all.blocks) hand_over(block.last_use);
    for (auto& block : all.leaving) hand_over(block.last_use);
    EventCache::instance().hand_on(green, primary);
}

} // namespace gpu_sleep::agent::intercepted
