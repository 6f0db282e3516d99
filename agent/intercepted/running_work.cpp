// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One event for each context, looked at for a moment.

#include "intercepted/running_work.hpp"

#include "base/units.hpp"
#include "driver/context.hpp"
#include "intercepted/captures.hpp"
#include "intercepted/contexts_lock.hpp"
#include "intercepted/own_contexts.hpp"
#include "intercepted/pending_work.hpp"

#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace gpu_sleep::agent::intercepted {

RunningWork find_running_work(const driver::Api& api) {
    if (!api.cuCtxRecordEvent) return RunningWork::unknown;
    // Who ends a context, or begins a capture, is at work.
    const std::shared_lock contexts_stay(contexts_mutex(), std::try_to_lock);
    if (!contexts_stay) return RunningWork::some;
    const auto primary = driver::active_contexts(api);
    if (!primary) return RunningWork::some;
    auto contexts = own_contexts();
    for (const auto& context : *primary) contexts.push_back(context.get());
    PendingWork work(api, PendingWork::Way::to_look);
    {
        const std::shared_lock order(capture_order(), std::try_to_lock);
        if (!order || captures_open() != 0) return RunningWork::some;
        for (auto* const context : contexts)
            if (!work.note(context)) return RunningWork::some;
    }
    constexpr Milliseconds k_moment{5}; // an idle GPU needs some microseconds for an event
    constexpr std::chrono::microseconds k_look{50};
    for (const auto deadline = Clock::now() + k_moment; !work.is_done(); std::this_thread::sleep_for(k_look))
        if (Clock::now() >= deadline) return RunningWork::some;
    return RunningWork::none;
}

} // namespace gpu_sleep::agent::intercepted
