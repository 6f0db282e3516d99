// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Events that are used again in their context: making one and ending it takes the driver as long as all else
// that a free asks of it. Internal to this module.

#pragma once

#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "driver/api.hpp"

#include <map>
#include <vector>

namespace gpu_sleep::agent::intercepted {

/// Events without timing, by their contexts. Thread-safe; its mutex comes after all others of this module.
/// Throws where memory runs out.
class EventCache {
public:
    /// The process's. Never destroyed: programs free memory until their very end.
    [[nodiscard]] static EventCache& instance();

    /// An event of the context, which exists; null if none can be had.
    [[nodiscard]] CUevent take(const driver::Api& api, CUcontext context);
    /// Takes it back, unless its context has ended meanwhile, and the event with it. Where memory is short
    /// the event is lost.
    void give(CUcontext context, CUevent event) noexcept;

    /// The context is about to end: none of its events is given out any more.
    [[nodiscard]] std::vector<CUevent> take_all_of(CUcontext context);
    /// It has not ended.
    void put_back(CUcontext context, const std::vector<CUevent>& events);
    /// A green context has ended, whose events are those of its primary one.
    void hand_on(CUcontext green, CUcontext primary);

private:
    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(agent::lock_order::innermost);
    std::map<CUcontext, std::vector<CUevent>> events_ GPU_SLEEP_GUARDED_BY(mutex_);
};

} // namespace gpu_sleep::agent::intercepted
