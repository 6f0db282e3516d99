// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Takes all that is known of a context out of the books when it ends, and puts it back if it stays.

#include "registry/registry.hpp"

namespace gpu_sleep::agent::registry {

Registry& make_books() noexcept {
    // In place, because their first use may come when the program has no memory left.
    alignas(Registry) static std::byte s_storage[sizeof(Registry)];
    static Mutex s_mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    const MutexLock lock(s_mutex);
    if (auto* const made = g_books.load(std::memory_order_acquire)) return *made;
    auto* const made = ::new (static_cast<void*>(s_storage)) Registry;
    g_books.store(made, std::memory_order_release);
    return *made;
}

Departed Registry::take(CUcontext context, bool is_primary) noexcept {
    const auto dies = [=](const auto& memory) { return dies_with(memory, context, is_primary); };
    Departed departed{.context = context, .is_primary = is_primary};
    departed.captures = captures.take(context);
    {
        const MutexLock lock(pools.mutex); // under which others take what waits for a stream out, and back
        pools.ending = context;
        departed.later =
            later.take([&](const Allocation& a) { return a.done ? a.freed_in == context : dies(a); });
    }
    objects.end_with(context);
    departed.allocations = allocations.take(dies);
    departed.record = contexts.take(context);
    departed.residual = residual.take(dies);
    return departed;
}

Allocations::Taken Registry::gone(Departed departed) noexcept {
    // What is left of its allocations outlives it.
    allocations.change([&](Allocation& a) {
        if (a.context == departed.context) a.context = nullptr;
    });
    for (const auto& [address, allocation] : departed.allocations)
        pools.count_freed(address, allocation.bytes);
    pools.settle(true);
    auto due = std::move(departed.later);
    due.merge(departed.allocations);
    for (auto& [address, allocation] : due) { // with the context its work is over
        allocation.context = nullptr;
        allocation.done = nullptr;
    }
    return due;
}

void Registry::put_back(Departed departed) noexcept {
    residual.put_back(departed.residual);
    contexts.put_back(std::move(departed.record));
    allocations.put_back(departed.allocations);
    later.add(departed.later);
    captures.put_back(departed.captures); // before what they keep from being asked
    pools.settle(false);
}

Captures::Taken Registry::hand_on(const Green& green) noexcept {
    if (!green.context) return {};
    auto taken = captures.take(green.context);
    objects.end_with(green.context);
    const auto hand_on = [&](Allocation& known) {
        if (known.context == green.context) known.context = green.primary;
        if (known.freed_in == green.context) known.freed_in = green.primary;
    };
    allocations.change(hand_on);
    pools.forget_order_of(green.context, green.primary);
    {
        const MutexLock lock(pools.mutex); // as in take()
        later.change(hand_on);
    }
    contexts.hand_events_on(green);
    return taken;
}

} // namespace gpu_sleep::agent::registry
