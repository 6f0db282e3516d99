// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A process that goes to sleep by itself once it has had no work on the GPU for so long: `gpu-run --idle` and
// `gpu-sleep --idle`.

#pragma once

#include "base/thread_safety.hpp"
#include "base/units.hpp"
#include "common/lock_order.hpp"
#include "model/model.hpp"
#include "server/request_queue.hpp"

namespace gpu_sleep::agent::lifecycle {

/// Decides when, and with what request; it has no thread, and others look at it now and then. Thread-safe.
class IdleTimer {
public:
    /// As the environment has it.
    IdleTimer();

    /// From now on as `request` has it.
    void set(const model::TimerRequest& request);

    /// How often to look, so that a sleep is late by a second at most, or by a tenth of the time.
    [[nodiscard]] Milliseconds pause_between_looks() const noexcept;
    /// Whether it is time: the process is awake, at least in part, and has been idle for so long.
    [[nodiscard]] bool is_due(double idle_seconds) const noexcept;
    struct Try {
        model::IdleSleepRequest request;
        unsigned setting = 0; ///< the number of the set() that it follows from
    };
    /// Deep if that is wanted, and the last try was not refused for it.
    [[nodiscard]] Try next() const;
    /// Notes how the sleep ended. Ignored if the timer was set again after `begun`.
    void note_end(const server::Outcome& outcome, const Try& begun);

    /// A sentence for a person: when it sleeps, and why it could not. Empty where it is not set.
    [[nodiscard]] std::string note(bool knows_idleness) const;

private:
    [[nodiscard]] bool is_set() const noexcept GPU_SLEEP_REQUIRES(mutex_) {
        return wanted_.only_if_idle.count() > 0;
    }

    const bool says_touches_; ///< the environment does, which only the program's own threads may read
    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    model::IdleSleepRequest wanted_ GPU_SLEEP_GUARDED_BY(mutex_); ///< after no time: it is not set
    unsigned settings_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;          ///< how often it was set
    std::string trouble_ GPU_SLEEP_GUARDED_BY(mutex_);         ///< why the last try failed; empty: it did not
    std::string told_ GPU_SLEEP_GUARDED_BY(mutex_);            ///< of these, what was logged last
    bool goes_less_deep_ GPU_SLEEP_GUARDED_BY(mutex_) = false; ///< the last try was refused for being deep
    Clock::time_point next_try_ GPU_SLEEP_GUARDED_BY(mutex_){}; ///< after one that came to nothing
};

} // namespace gpu_sleep::agent::lifecycle
