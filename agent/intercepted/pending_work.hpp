// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Waiting for the work in contexts without keeping captures from beginning meanwhile, and the events for
// that. Internal to this module.

#pragma once

#include "base/memory.hpp"
#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "driver/api.hpp"

#include <array>
#include <cstddef>
#include <map>
#include <vector>

namespace gpu_sleep::agent::intercepted {

/// The process's events without timing, by their contexts, to be used again: making one and ending it takes
/// the driver as long as all else that a free asks of it. Thread-safe; its mutex comes after all others of
/// this module. Throws where memory runs out.
class EventCache {
public:
    /// An event of the context, which exists; null if none can be had.
    [[nodiscard]] CUevent take(const driver::Api& api, CUcontext context);
    /// Takes it back, unless its context has ended meanwhile, and the event with it. Where memory is short
    /// the event is lost.
    void give(CUcontext context, CUevent event) noexcept;

    /// The context is about to end: none of its events is given out any more.
    [[nodiscard]] std::vector<CUevent> take_all_of(CUcontext context) {
        const MutexLock lock(mutex_);
        auto cached = events_.extract(context);
        return cached ? std::move(cached.mapped()) : std::vector<CUevent>();
    }
    /// It has not ended.
    void put_back(CUcontext context, const std::vector<CUevent>& events) {
        const MutexLock lock(mutex_);
        auto& cached = events_[context];
        cached.insert(cached.end(), events.begin(), events.end());
    }
    /// A green context has ended, whose events are those of its primary one.
    void hand_on(CUcontext green, CUcontext primary) { put_back(primary, take_all_of(green)); }

private:
    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(agent::lock_order::innermost);
    std::map<CUcontext, std::vector<CUevent>> events_ GPU_SLEEP_GUARDED_BY(mutex_);
};

/// The unfinished GPU work of some contexts, as of when it was noted. For one thread. The contexts must
/// outlive it.
class PendingWork {
public:
    /// How it is noted: at best; while captures may be open, by what breaks none; or by what nobody ever
    /// waits for, and only looks at.
    enum class Way : int { best, amid_captures, to_look };
    explicit PendingWork(const driver::Api& api, Way way = Way::best) noexcept : api_(api), way_(way) {}
    PendingWork& operator=(PendingWork&&) = delete;
    ~PendingWork();

    /// Notes the work of one more context; nothing for null. Would break a capture, so capture_order() is
    /// held and none is open. Waits at once where nothing can be had to note it by; amid captures it returns
    /// false instead, and needs neither; to look it returns false, too.
    bool note(CUcontext context) noexcept;
    /// Waits for the work of a context at once, of which nothing is kept. Needs what note() does. False, and
    /// it has not waited, where it might break a capture.
    bool wait_for(CUcontext context) noexcept;
    /// Waits for all of it. Breaks no capture, so capture_order() is not held. Returns what went wrong with
    /// the work, as the driver's own free does; CUDA_SUCCESS otherwise.
    CUresult wait() noexcept;
    /// Whether all of what was noted to look is done by now, and nothing went wrong with it. Breaks no
    /// capture.
    [[nodiscard]] bool is_done() const noexcept;

private:
    struct Noted {
        CUcontext context = nullptr;
        CUevent done = nullptr;
        CUdeviceptr block = 0; ///< where there is no event
    };
    /// Whether an event was recorded. The context is current.
    [[nodiscard]] bool record(CUcontext context) noexcept;
    /// The same for drivers that cannot record a context, and amid captures: whether there is a block of the
    /// driver's own, whose free waits for all work of the context. That breaks no capture of a thread whose
    /// mode is relaxed, as cuCtxSynchronize does. Seen with driver 13.0; captures of the same context begin
    /// when it is over.
    [[nodiscard]] bool take_block(CUcontext context) noexcept;
    /// Gives it back. The capture mode is relaxed.
    void free_block(Noted& noted) noexcept;

    /// Keeps the first status by which work failed.
    void look_at(CUresult status) noexcept;

    const driver::Api& api_;
    Way way_;
    CUresult failure_ = CUDA_SUCCESS;
    std::array<Noted, 16>
        noted_{}; ///< of more contexts than anybody has; further ones are waited for at once
    std::size_t count_ = 0;
};

} // namespace gpu_sleep::agent::intercepted
