// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A list of events for each context.

#include "caught/event_cache.hpp"

#include "base/immortal.hpp"
#include "caught/state.hpp"
#include "driver/context.hpp"

#include <utility>

namespace gpu_sleep::agent::caught {

EventCache& EventCache::instance() {
    static Immortal<EventCache> s_cache;
    return *s_cache;
}

CUevent EventCache::take(const driver::Api& api, CUcontext context) {
    {
        const std::lock_guard lock(mutex_);
        if (auto& cached = events_[context]; !cached.empty()) {
            auto* const event = cached.back();
            cached.pop_back();
            return event;
        }
    }
    const auto create = [&]() -> CUevent {
        CUevent event = nullptr;
        return api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS ? event : nullptr;
    };
    CUcontext current = nullptr;
    if (api.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context) return create();
    const driver::CurrentContext entered(api, context);
    return entered.status() == CUDA_SUCCESS ? create() : nullptr;
}

void EventCache::give(CUcontext context, CUevent event) noexcept {
    noted([&] {
        const std::lock_guard lock(mutex_);
        const auto cached = events_.find(context);
        if (cached != events_.end()) cached->second.push_back(event);
    });
}

std::vector<CUevent> EventCache::take_all_of(CUcontext context) {
    const std::lock_guard lock(mutex_);
    auto cached = events_.extract(context);
    return cached ? std::move(cached.mapped()) : std::vector<CUevent>();
}

void EventCache::put_back(CUcontext context, const std::vector<CUevent>& events) {
    const std::lock_guard lock(mutex_);
    auto& cached = events_[context];
    cached.insert(cached.end(), events.begin(), events.end());
}

void EventCache::hand_on(CUcontext green, CUcontext primary) {
    put_back(primary, take_all_of(green));
}

} // namespace gpu_sleep::agent::caught
