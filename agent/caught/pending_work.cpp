// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One event for each context.

#include "caught/pending_work.hpp"

#include "base/guard.hpp"
#include "caught/event_cache.hpp"
#include "driver/context.hpp"

#include <algorithm>

namespace gpu_sleep::agent::caught {

PendingWork::~PendingWork() {
    for (std::size_t i = 0; i < count_; ++i) EventCache::instance().give(noted_[i].context, noted_[i].done);
}

bool PendingWork::record(CUcontext context) noexcept {
    if (!api_.cuCtxRecordEvent || count_ == noted_.size()) return false; // a driver before 12.5, say
    bool is_recorded = false;
    noted([&] {
        auto* const event = EventCache::instance().take(api_, context);
        if (!event) return;
        is_recorded = api_.cuCtxRecordEvent(context, event) == CUDA_SUCCESS;
        if (is_recorded)
            noted_[count_++] = {context, event};
        else
            EventCache::instance().give(context, event);
    });
    return is_recorded;
}

void PendingWork::note(CUcontext context) noexcept {
    const auto end = noted_.begin() + static_cast<std::ptrdiff_t>(count_);
    const auto same = [=](const Noted& noted) { return noted.context == context; };
    if (!context || std::any_of(noted_.begin(), end, same)) return;
    const driver::RelaxedCaptureMode relaxed(api_);
    const driver::CurrentContext current(api_, context);
    if (current.status() == CUDA_SUCCESS && !record(context)) api_.cuCtxSynchronize();
}

void PendingWork::wait_for(CUcontext context) noexcept {
    const driver::RelaxedCaptureMode relaxed(api_);
    const driver::CurrentContext current(api_, context);
    if (current.status() == CUDA_SUCCESS) api_.cuCtxSynchronize();
}

void PendingWork::wait() noexcept {
    const driver::RelaxedCaptureMode relaxed(api_); // in which it breaks no capture that has begun since
    for (std::size_t i = 0; i < count_; ++i) {
        if (api_.cuEventQuery(noted_[i].done) == CUDA_SUCCESS) continue; // most often
        const driver::CurrentContext current(api_, noted_[i].context);
        api_.cuEventSynchronize(noted_[i].done);
    }
}

} // namespace gpu_sleep::agent::caught
