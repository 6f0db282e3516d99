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
          deep_(deep), name_(std::move(name)) {}

    /// How all stands; as it was before, while a transaction moves contents for a long time.
    [[nodiscard]] model::Report report();
    /// The state of all memory, as report() tells it. Allocates nothing.
    [[nodiscard]] model::State state() noexcept;
    void set_name(std::string_view name) {
        const MutexLock lock(mutex_);
        name_ = name;
    }
    [[nodiscard]] std::string name() {
        const MutexLock lock(mutex_);
        return name_;
    }
    void set_group(std::string_view group) {
        const MutexLock lock(mutex_);
        group_ = group;
    }
    /// Remembers how much contents a wake has brought back, and how long that took.
    void set_woken(Bytes bytes, double seconds) {
        const MutexLock lock(mutex_);
        woken_bytes_ = bytes;
        woken_seconds_ = seconds;
    }
    /// Memory has come back, or a pause has ended.
    void note_wake() noexcept {
        const MutexLock lock(mutex_);
        woken_ = Clock::now();
    }
    /// Since it came back last, in seconds; nothing if it never slept.
    [[nodiscard]] std::optional<double> seconds_since_wake() const noexcept {
        const MutexLock lock(mutex_);
        return woken_ ? std::optional(seconds_since(*woken_)) : std::nullopt;
    }
    /// Remembers why the last wake for a touch failed; empty: it did not. report() says so while touches wait
    /// for another try.
    void set_touch_trouble(std::string_view trouble) {
        const MutexLock lock(mutex_);
        touch_trouble_ = trouble;
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
    std::string name_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::string group_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::string touch_trouble_ GPU_SLEEP_GUARDED_BY(mutex_);
    Bytes woken_bytes_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    double woken_seconds_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    std::optional<Clock::time_point> woken_ GPU_SLEEP_GUARDED_BY(mutex_);
};

} // namespace gpu_sleep::agent::operations
