// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// When pools take blocks back that are freed at once, and give ranges back: at a synchronise, when memory is
// short, and with the contexts that their blocks were freed in. And frees that wait for captures to end, for
// waiting for work would break a capture, and so would not waiting.

#include "intercepted/freeing.hpp"

#include "intercepted/pool_table.hpp"

#include <bit>

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

/// Closes memory of another process, awake or asleep.
void unmap_import(ProgramMemory& memory, CUdeviceptr address) {
    const driver::RelaxedCaptureMode relaxed(memory.api());
    memory.with_lock([&](LockedMemory& locked) {
        const auto* const open = locked.ledger().find(address);
        if (!open) return; // an exception came after it
        const auto begin = open->address;
        const auto ended = books().imports.take(begin);
        const auto backing = locked.remove_mapping(begin);
        const driver::AddressSpan span{begin, backing.bytes};
        if (backing.is_asleep()) gate::Gate::instance().forget({span.address, span.end()});
        const auto done = guarded([&] {
            auto unmapped = backing.mapped ? driver::unmap(memory.api(), span) : Result<void>();
            return unmapped && backing.handle != 0 ? driver::release(memory.api(), backing.handle) : unmapped;
        });
        if (!done) log::warning("shared memory stays mapped: {}", done.error().message);
    });
}

/// Frees what is no block of a pool here.
void give_plain(ProgramMemory& memory, const Allocation& freed) {
    if (freed.is_import)
        unmap_import(memory, freed.address);
    else
        give_range(memory, freed.address);
}

/// Frees plain memory that waited for a stream which is there now.
void finish_frees_in_order(Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
    Due due{books().later.take([](const Allocation& each) { return waits_for(each) == WaitsFor::stream; })};
    if (!due.allocations.empty()) all.has_excess = true; // also for what an exception leaves
    for (auto next = due.allocations.begin(); next != due.allocations.end();) {
        auto& freed = next->second;
        if (memory.api().cuEventQuery(freed.done) != CUDA_SUCCESS) {
            ++next;
            continue;
        }
        books().contexts.give_event(freed.freed_in, std::exchange(freed.done, nullptr));
        give_plain(memory, freed); // may throw: those before it are not to be freed again
        next = due.allocations.erase(next);
    }
}

/// Gives back what exceeds the thresholds.
void trim_excess() noexcept {
    with_pools([](Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
        all.is_due = false;
        give_back_idle(all, memory, [&](const Range& range) { return is_excess(memory, range); });
        // Only now: who synchronises meanwhile has to find that there is something to give back.
        all.has_excess = std::any_of(all.ranges.begin(), all.ranges.end(), [&](const auto& entry) {
            return entry.second.live == 0 && is_excess(memory, entry.second); // not done
        });
        finish_frees_in_order(all, memory);
    });
}

/// Frees an allocation, asleep or awake, as give_range() does. It may be a pool's, which keeps it as it keeps
/// what a synchronise left free.
void give_allocation(ProgramMemory& memory, const Allocation& allocation) {
    if (!allocation.pool || allocation.is_import) return give_plain(memory, allocation);
    const driver::RelaxedCaptureMode relaxed(memory.api());
    auto& all = books().pools;
    const MutexLock lock(all.mutex);
    const auto block = all.blocks.find(allocation.address);
    if (block == all.blocks.end()) return;
    const auto pool = block->second.range->pool;
    make_spare(all, memory, block, {});
    give_back_idle(all, memory,
                   [&](const Range& range) { return range.pool == pool && is_excess(memory, range); });
}

/// Notes the work for which the driver's free waits: that of the allocation's own device, not of others that
/// reach it. Memory of a pool outlives the context that it was made in, and other contexts of its device may
/// use it too. False as PendingWork::note().
bool note_work(const driver::Api& api, const Due& due, PendingWork& work) {
    bool is_noted = true;
    const auto note_on = [&](driver::DeviceMask devices) {
        for (; devices != 0; devices &= devices - 1)
            is_noted &= note_work_on(api, std::countr_zero(devices), work);
    };
    for (const auto& [address, allocation] : due.allocations) {
        if (allocation.is_import)
            note_on(allocation.access);
        else if (allocation.pool)
            note_on(driver::DeviceMask{1} << allocation.device);
        else
            is_noted &= work.note(allocation.context);
    }
    return is_noted;
}

} // namespace

void synchronized() noexcept {
    auto& all = books().pools;
    const auto free_calls = all.free_calls.load(std::memory_order_relaxed);
    for (auto to = all.synchronized_to.load(std::memory_order_relaxed); to < free_calls;)
        if (all.synchronized_to.compare_exchange_weak(to, free_calls)) break;
    if (!all.has_excess.load(std::memory_order_relaxed)) return;
    all.is_due = true;
    const auto now = Clock::now();
    if (books().captures.count() != 0 || now < all.next_trim.load(std::memory_order_relaxed))
        return tidy_later();
    all.next_trim.store(now + k_between, std::memory_order_relaxed);
    give_back_due();
}

void give_back_due() noexcept {
    auto& all = books().pools;
    if (!all.is_due.load(std::memory_order_relaxed)) return;
    if (books().captures.count() != 0) return tidy_later();
    trim_excess();
}

void trim() noexcept {
    with_pools([](Pools& all, ProgramMemory& memory) GPU_SLEEP_REQUIRES(all.mutex) {
        all.is_due = false;
        give_back_idle(all, memory, [](const Range&) { return true; });
        finish_frees_in_order(all, memory);
    });
}

void Due::give_back(ProgramMemory& memory) {
    for (; !allocations.empty(); allocations.erase(allocations.begin()))
        give_allocation(memory, allocations.begin()->second);
}

void free_departed(ProgramMemory& memory, Departed departed) noexcept {
    const bool is_primary = departed.is_primary;
    Due due{books().gone(std::move(departed))};
    ignoring_errors([&] {
        if (is_primary) memory.note_unpinned();
        due.give_back(memory);
        trim_excess();
    });
}

CUresult free_due(ProgramMemory& memory, Due& due, PendingWork::Way way) {
    PendingWork work(memory.api(), way);
    auto& captures = books().captures;
    std::shared_lock order(captures.order, std::defer_lock);
    if (way == PendingWork::Way::best) {
        order.lock();
        if (freeing_of({.captures = captures.count() != 0}) != Freeing::at_once) return CUDA_SUCCESS;
    }
    if (!note_work(memory.api(), due, work)) return CUDA_SUCCESS;
    if (order) order.unlock();
    const auto status = work.wait();
    due.give_back(memory);
    return status;
}

void free_waiting() noexcept {
    auto& all = books();
    // The driver closes its own memory of other processes during a capture. Nothing may still use ours,
    // though, and waiting would break the capture.
    if (!all.later.may_wait_for_captures() || all.captures.count() != 0) return;
    with_memory([&](ProgramMemory& memory) {
        // From here on none of their contexts ends; those that ended took theirs with them.
        const auto stay = all.contexts.stay();
        Due due{all.later.take_for_captures()};
        free_due(memory, due);
    });
}

bool free_amid_captures(ProgramMemory& memory) noexcept {
    bool is_any_free = false;
    ignoring_errors([&] {
        auto& all = books();
        const auto stay = all.contexts.stay();
        Due due{all.later.take(
            [](const Allocation& each) { return waits_for(each) == WaitsFor::captures_or_need; })};
        const bool has_any = !due.allocations.empty();
        free_due(memory, due, PendingWork::Way::amid_captures);
        is_any_free = has_any && due.allocations.empty();
    });
    return is_any_free;
}

} // namespace gpu_sleep::agent::intercepted
