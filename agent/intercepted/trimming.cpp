// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// When pools give ranges back: at a synchronise, a trim, when memory is short, and with the contexts that
// their blocks were freed in.

#include "intercepted/trimming.hpp"

#include "base/thread_safety.hpp"
#include "driver/context.hpp"
#include "intercepted/captures.hpp"
#include "intercepted/event_cache.hpp"
#include "intercepted/idle_ranges.hpp"
#include "intercepted/pool_table.hpp"
#include "intercepted/state.hpp"
#include "intercepted/taken.hpp"

#include <utility>
#include <vector>

namespace gpu_sleep::agent::intercepted {
namespace {

/// How long what was freed before a synchronise may stay, if another synchronise gives it back: programs that
/// synchronise after every step would make and release the same ranges again and again, 54 us for each 2 MiB
/// (interception_bench, "in stream order"). Whoever asks meanwhile is answered as if it were gone: it goes
/// then.
constexpr Milliseconds k_between{10};
/// When it goes if there is none.
constexpr Milliseconds k_by_itself{50};

void tidy_later() noexcept {
    if (const auto* const with = memory()) with->tidy_within(k_by_itself);
}

} // namespace

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
    std::vector<PendingFree> pending;
    const auto is_of = [=](const LastUse& last_use) {
        return last_use.done && last_use.freed_in.context == context;
    };
    {
        const MutexLock lock(all.mutex);
        for (const auto& block : all.pending_frees)
            if (is_of(block.last_use)) pending.push_back(block);
        for (auto& [address, block] : all.blocks) block.is_held |= !block.is_live && is_of(block.last_use);
        std::erase_if(all.pending_frees, [&](const PendingFree& block) { return is_of(block.last_use); });
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
        for (const auto& block : pending) give_range(memory, block.address);
        const MutexLock lock(all.mutex);
        let_go(true);
        trim_excess(all, memory);
    };
    auto stays = [=, &all] {
        EventCache::instance().put_back(context, events);
        const MutexLock lock(all.mutex);
        let_go(false);
        all.pending_frees.insert(all.pending_frees.end(), pending.begin(), pending.end());
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
    for (auto& block : all.pending_frees) hand_over(block.last_use);
    EventCache::instance().hand_on(green, primary);
}

} // namespace gpu_sleep::agent::intercepted
