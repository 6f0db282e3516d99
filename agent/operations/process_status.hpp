// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How the process stands, for whoever asks, while a transaction runs too.

#pragma once

#include "operations/deep_sleep.hpp"
#include "operations/idle_watch.hpp"
#include "operations/turnstile.hpp"

namespace gpu_sleep::agent::operations {

/// Thread-safe.
class ProcessStatus {
public:
    ProcessStatus(ProgramMemory& memory, const RetiredContents& retired, const IdleWatch& idle,
                  const Inhibitors& inhibitors, KnownDevices& devices, const DeepSleep& deep,
                  std::string name)
        : memory_(memory), retired_(retired), idle_(idle), inhibitors_(inhibitors), devices_(devices),
          deep_(deep) {
        notes_.name = std::move(name);
    }

    /// How all stands; as it was before, while a transaction moves contents for a long time.
    [[nodiscard]] model::Report report();
    /// The state of all memory, as report() tells it. Allocates nothing.
    [[nodiscard]] model::State state() noexcept;
    /// What others note of the process.
    struct Notes {
        std::string name;
        std::string group;
        std::pair<Bytes, double> brought_back{}; ///< contents by a wake, and in how many seconds
        std::optional<Clock::time_point> woken;  ///< when memory came back, or a pause ended, last
        /// Why the last wake for a touch failed; empty: it did not. report() says so while touches wait for
        /// another try.
        std::string touch_trouble;
    };
    template <class T>
    void note(T Notes::*member, const std::type_identity_t<T>& value) {
        const MutexLock lock(mutex_);
        notes_.*member = value;
    }
    [[nodiscard]] Notes notes() const {
        const MutexLock lock(mutex_);
        return notes_;
    }
    /// Since it came back last, in seconds; nothing if it never slept.
    [[nodiscard]] std::optional<double> seconds_since_wake() const noexcept {
        const MutexLock lock(mutex_);
        return notes_.woken ? std::optional(seconds_since(*notes_.woken)) : std::nullopt;
    }
    /// Writes how all stands now. What takes memory comes last.
    void complete(const LockedMemory& locked, model::Report& report);
    /// Sets the report that report() gives while a transaction runs: the state before it. None once it has
    /// ended.
    void set_before(std::optional<model::Report> before) {
        const MutexLock lock(before_mutex_);
        before_ = std::move(before);
    }

private:
    /// What `use` says of the memory; or, while a transaction moves contents for a long time, what `before`
    /// says of how the process was when it began.
    template <class Use, class Before>
    [[nodiscard]] auto look(Use&& use, Before&& before);
    /// Deep asleep, what is left of it on a GPU is none.
    [[nodiscard]] model::State state_with(model::State state) const noexcept {
        return deep_.is_deep() && state != model::State::damaged ? model::State::asleep : state;
    }

    ProgramMemory& memory_;
    const RetiredContents& retired_;
    const IdleWatch& idle_;
    const Inhibitors& inhibitors_;
    KnownDevices& devices_;
    const DeepSleep& deep_;

    Mutex before_mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    /// How the process was when the transaction under way began.
    std::optional<model::Report> before_ GPU_SLEEP_GUARDED_BY(before_mutex_);

    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    Notes notes_ GPU_SLEEP_GUARDED_BY(mutex_);
};

} // namespace gpu_sleep::agent::operations
