// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A list of events for each context.

#include "intercepted/event_cache.hpp"

#include "base/guard.hpp"
#include "base/immortal.hpp"
#include "base/thread_safety.hpp"
#include "driver/context.hpp"

#include <utility>

namespace gpu_sleep::agent::intercepted {

namespace {

/// Waiting for it is as the program chose for its current context: busy, or not.
unsigned flags_of_events(const driver::Api& api) {
    unsigned flags = 0;
    const bool blocks = api.cuCtxGetFlags(&flags) == CUDA_SUCCESS &&
                        (flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC;
    return blocks ? CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC : CU_EVENT_DISABLE_TIMING;
}

} // namespace

EventCache& EventCache::instance() {
    static Immortal<EventCache> s_cache;
    return *s_cache;
}

CUevent EventCache::take(const driver::Api& api, CUcontext context) {
    {
        const MutexLock lock(mutex_);
        if (auto& cached = events_[context]; !cached.empty()) {
            auto* const event = cached.back();
            cached.pop_back();
            return event;
        }
    }
    const auto create = [&]() -> CUevent {
        CUevent event = nullptr;
        return api.cuEventCreate(&event, flags_of_events(api)) == CUDA_SUCCESS ? event : nullptr;
    };
    CUcontext current = nullptr;
    if (api.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context) return create();
    const driver::CurrentContext entered(api, context);
    return entered.status() == CUDA_SUCCESS ? create() : nullptr;
}

void EventCache::give(CUcontext context, CUevent event) noexcept {
    ignoring_errors([&] {
        const MutexLock lock(mutex_);
        const auto cached = events_.find(context);
        if (cached != events_.end()) cached->second.push_back(event);
    });
}

std::vector<CUevent> EventCache::take_all_of(CUcontext context) {
    const MutexLock lock(mutex_);
    auto cached = events_.extract(context);
    return cached ? std::move(cached.mapped()) : std::vector<CUevent>();
}

void EventCache::put_back(CUcontext context, const std::vector<CUevent>& events) {
    const MutexLock lock(mutex_);
    auto& cached = events_[context];
    cached.insert(cached.end(), events.begin(), events.end());
}

void EventCache::hand_on(CUcontext green, CUcontext primary) {
    put_back(primary, take_all_of(green));
}

} // namespace gpu_sleep::agent::intercepted
