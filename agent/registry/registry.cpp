// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Takes all that is known of a context out of the books when it ends, and puts it back if it stays.

#include "registry/registry.hpp"

#include <utility>

namespace gpu_sleep::agent::registry {

Departed Registry::take(CUcontext context, bool is_primary) noexcept {
    // Memory of pools outlives contexts, but for the device's primary one, which takes everything with it.
    // Captures as small as these make a std::function that does not allocate.
    const auto dies = [=](const Allocation& a) {
        return !a.is_virtual && a.context == context && (is_primary || !a.pool);
    };
    Departed departed;
    departed.context = context;
    departed.is_primary = is_primary;
    departed.captures = captures.take(context);
    pools.hold_uses_in(context);
    departed.deferred = deferred.take(dies);
    objects.end_with(context);
    departed.allocations = allocations.take(dies);
    departed.record = contexts.take(context);
    departed.residual = residual.take(context, is_primary);
    return departed;
}

void Registry::put_back(Departed departed) noexcept {
    residual.put_back(departed.residual);
    contexts.put_back(std::move(departed.record));
    allocations.put_back(departed.allocations);
    deferred.add(departed.deferred);
    captures.put_back(departed.captures); // before what they keep from being asked
    pools.let_go_of_uses_in(departed.context, false);
}

} // namespace gpu_sleep::agent::registry
