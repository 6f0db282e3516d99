// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// When pools take blocks back that are freed at once, and give ranges back: at a synchronise, when memory is
// short, and with the contexts that their blocks were freed in. And frees that wait for captures to end, for
// waiting for work would break a capture, and so would not waiting.

#include "intercepted/freeing.hpp"

#include "base/memory.hpp"
#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "driver/context.hpp"
#include "intercepted/captures.hpp"
#include "intercepted/ipc.hpp"
#include "intercepted/own_contexts.hpp"
#include "intercepted/pending_work.hpp"
#include "intercepted/pool_table.hpp"

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

/// The last uses of all that was freed; those of what is not are none.
template <class Body>
void for_each_use(Pools& all, Body&& body) GPU_SLEEP_REQUIRES(all.mutex) {
    for (auto& [address, block] : all.blocks) body(block.last_use);
    for (auto& block : all.pending_frees) body(block.last_use);
}

/// Frees the blocks of no pool that nobody uses any more.
void finish_pending_frees(Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
    auto& frees = all.pending_frees;
    if (!frees.empty()) all.has_excess = true; // also for what an exception leaves
    for (std::size_t i = 0; i < frees.size();) {
        if (!note_if_done(memory, frees[i].last_use)) {
            ++i;
            continue;
        }
        give_range(memory, frees[i].address); // may throw: those before it are not to be freed again
        frees[i] = frees.back();
        frees.pop_back();
    }
}

/// Gives back what exceeds the thresholds.
void trim_excess(Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
    all.is_due = false;
    give_back_idle(all, memory, [&](const Range& range) { return is_excess(memory, range); });
    // Only now: who synchronises meanwhile has to find that there is something to give back.
    all.has_excess = std::any_of(all.ranges.begin(), all.ranges.end(), [&](const auto& entry) {
        return entry.second.live == 0 && is_excess(memory, entry.second); // not done
    });
    finish_pending_frees(all, memory);
}

/// Frees that wait until no capture is open: to wait for work would break a capture, and so would not
/// waiting.
struct Later {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<CUdeviceptr, Allocation> allocations GPU_SLEEP_GUARDED_BY(mutex);
};

/// Allocations that are taken out of Later to be freed. Those that are not freed by its end, for want of
/// memory, go back and wait again.
class Due {
public:
    Due& operator=(Due&&) = delete;
    ~Due() { put_back(); }

    void take(const std::function<bool(const Allocation&)>& wanted) {
        auto& later = immortal<Later>();
        const MutexLock lock(later.mutex);
        allocations_ = move_out(later.allocations, [&](const auto& entry) { return wanted(entry.second); });
    }
    void give_back(ProgramMemory& memory) {
        for (; !allocations_.empty(); allocations_.erase(allocations_.begin()))
            give_allocation(memory, allocations_.begin()->second);
    }
    void put_back() noexcept {
        auto& later = immortal<Later>();
        const MutexLock lock(later.mutex);
        later.allocations.merge(allocations_);
    }
    /// The contexts in which they were allocated are gone, and all work there.
    void forget_contexts() noexcept {
        for (auto& [address, allocation] : allocations_) allocation.context = nullptr;
    }
    [[nodiscard]] auto begin() const { return allocations_.begin(); }
    [[nodiscard]] auto end() const { return allocations_.end(); }

private:
    std::map<CUdeviceptr, Allocation> allocations_;
};

} // namespace

void synchronized() noexcept {
    auto& all = immortal<Pools>();
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
    auto& all = immortal<Pools>();
    if (!all.is_due.load(std::memory_order_relaxed)) return;
    if (captures_open() != 0) return tidy_later();
    with_pools([](Pools& pools, ProgramMemory& memory)
                   GPU_SLEEP_REQUIRES(pools.mutex) { trim_excess(pools, memory); });
}

void trim() noexcept {
    with_pools([](Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
        all.is_due = false;
        give_back_idle(all, memory, [](const Range&) { return true; });
        finish_pending_frees(all, memory);
    });
}

void freed_from_pool(const Allocation& allocation) {
    auto& all = immortal<Pools>();
    const MutexLock lock(all.mutex);
    const auto block = all.blocks.find(allocation.address);
    if (block != all.blocks.end()) block->second.range->pool->figures.used -= allocation.bytes;
}

void give_allocation(ProgramMemory& memory, const Allocation& allocation) {
    if (!allocation.pool) return give_range(memory, allocation.address);
    const driver::RelaxedCaptureMode relaxed(memory.api());
    auto& all = immortal<Pools>();
    const MutexLock lock(all.mutex);
    const auto block = all.blocks.find(allocation.address);
    if (block == all.blocks.end()) return;
    const auto pool = block->second.range->pool;
    make_spare(all, block, {});
    give_back_idle(all, memory,
                   [&](const Range& range) { return range.pool == pool && is_excess(memory, range); });
}

PendingRemoval take_pools_of(ProgramMemory& memory, CUcontext context) {
    auto& all = immortal<Pools>();
    const auto events = std::make_shared<std::vector<CUevent>>();
    const auto let_go = [=, &all](bool is_gone) GPU_SLEEP_REQUIRES(all.mutex) {
        for_each_use(all, [=](LastUse& use) {
            if (!use.is_held || use.freed_in.context != context) return;
            use.is_held = false;
            if (is_gone) use = {}; // with the context its work is over, and its events are gone
        });
    };
    auto gone = [=, &all, &memory] {
        const driver::RelaxedCaptureMode relaxed(memory.api());
        const MutexLock lock(all.mutex);
        let_go(true);
        trim_excess(all, memory);
    };
    auto stays = [=, &all] {
        {
            const MutexLock lock(all.mutex);
            let_go(false);
            all.has_excess = true;
        }
        immortal<EventCache>().put_back(context, *events); // last: it may throw
    };
    PendingRemoval taken{std::move(gone), std::move(stays)};
    // From here on nothing takes memory.
    {
        const MutexLock lock(all.mutex);
        for_each_use(all, [=](LastUse& use) { use.is_held |= use.done && use.freed_in.context == context; });
    }
    *events = immortal<EventCache>().take_all_of(context);
    return taken;
}

void forget_order_of(CUstream stream) {
    auto& all = immortal<Pools>();
    const MutexLock lock(all.mutex);
    for_each_use(all, [=](LastUse& use) { use.in_order &= use.freed_in.stream != stream; });
}

void forget_order_of(CUcontext green, CUcontext primary) {
    auto& all = immortal<Pools>();
    const MutexLock lock(all.mutex);
    for_each_use(all, [=](LastUse& use) {
        if (use.freed_in.context != green) return;
        use.freed_in.context = primary;
        use.in_order = false;
    });
    immortal<EventCache>().hand_on(green, primary);
}

// Memory of a pool outlives the context that it was made in, and other contexts of its device may use it too.
bool note_work(ProgramMemory& memory, const Allocation& allocation, PendingWork& work) {
    return allocation.pool ? note_work_on(memory, allocation.device, work) : work.note(allocation.context);
}

void Freeing::free_later() noexcept {
    if (record_.empty()) return;
    auto& later = immortal<Later>();
    const MutexLock lock(later.mutex);
    later.allocations.insert(std::move(record_));
}

PendingRemoval take_waiting_of(ProgramMemory& memory, const std::function<bool(const Allocation&)>& dies) {
    const auto due = std::make_shared<Due>();
    auto gone = [=, &memory] {
        due->forget_contexts();
        due->give_back(memory);
    };
    PendingRemoval taken{std::move(gone), [=] { due->put_back(); }};
    due->take(dies); // last: it takes no memory
    return taken;
}

void free_waiting() noexcept {
    close_waiting();
    ignoring_errors([] {
        auto& later = immortal<Later>();
        {
            const MutexLock lock(later.mutex);
            if (later.allocations.empty() || captures_open() != 0) return;
        }
        const auto with = memory();
        if (!with) return;
        let_contexts_end();
        // From here on none of their contexts ends; those that ended took theirs with them.
        const std::shared_lock contexts(contexts_mutex());
        Due due;
        PendingWork work(with->api());
        {
            const std::shared_lock order(capture_order());
            if (captures_open() != 0) return;
            due.take([](const Allocation&) { return true; });
            for (const auto& [address, allocation] : due) note_work(*with, allocation, work);
        }
        work.wait();
        due.give_back(*with);
    });
}

bool free_amid_captures(ProgramMemory& memory) noexcept {
    bool is_any_free = false;
    ignoring_errors([&] {
        let_contexts_end();
        const std::shared_lock contexts(contexts_mutex());
        Due due;
        PendingWork work(memory.api(), PendingWork::Way::amid_captures);
        // Memory of a pool may have been freed in a stream that captures: until the capture ends it is in
        // use.
        due.take([](const Allocation& allocation) { return !allocation.pool; });
        for (const auto& [address, allocation] : due)
            if (!note_work(memory, allocation, work)) return;
        work.wait();
        is_any_free = due.begin() != due.end();
        due.give_back(memory);
    });
    return is_any_free;
}

} // namespace gpu_sleep::agent::intercepted
