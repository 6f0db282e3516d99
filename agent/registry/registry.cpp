// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Takes all that is known of a context out of the books when it ends, and puts it back if it stays.

#include "registry/registry.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace gpu_sleep::agent::registry {

Departed Registry::take(CUcontext context, bool is_primary) noexcept {
    // Memory of pools outlives contexts, but for the device's primary one, which takes everything with it.
    // Captures as small as these make a std::function that does not allocate.
    const auto dies = [=](const Allocation& a) {
        return !a.is_virtual && a.context == context && (is_primary || !a.pool);
    };
    Departed departed{.context = context, .is_primary = is_primary};
    departed.captures = captures.take(context);
    pools.hold_uses_in(context);
    {
        const MutexLock lock(pools.mutex); // under which others take what waits for a stream out, and back
        departed.later =
            later.take([&](const Allocation& a) { return a.done ? a.freed_in == context : dies(a); });
    }
    objects.end_with(context);
    departed.allocations = allocations.take(dies);
    departed.record = contexts.take(context);
    departed.residual = residual.take(context, is_primary);
    return departed;
}

void Registry::put_back(Departed departed) noexcept {
    for (auto& record : departed.residual) residual.put_back(std::move(record));
    contexts.put_back(std::move(departed.record));
    allocations.put_back(departed.allocations);
    later.add(departed.later);
    captures.put_back(departed.captures); // before what they keep from being asked
    pools.let_go_of_uses_in(departed.context, false);
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
