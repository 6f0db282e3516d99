// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Keeps sleeps out while the program holds them back, or somebody outside inhibits them. No hold begins while
// an operation lasts.

#pragma once

#include "common/lock_order.hpp"

namespace gpu_sleep::agent::operations {

/// The answer to a sleep while Turnstile::is_held().
inline constexpr const char* k_held_back = "the program holds sleeps back (gpu_sleep_hold)";

/// Operations that sleep wait for holds; holds wait for operations. Thread-safe.
class Turnstile {
public:
    /// For a sleep, waits until nobody holds sleeps back. `keep_going` is asked ten times a second. Called on
    /// the operations thread, where no other operation is under way: not between enter() and leave(). Errors:
    /// timed_out, cancelled.
    [[nodiscard]] Result<void> enter(bool is_sleep, Clock::time_point deadline,
                                     const std::function<bool()>& keep_going) {
        constexpr Milliseconds k_look{100};
        MutexLock lock(mutex_);
        const auto free = [&]() GPU_SLEEP_REQUIRES(mutex_) { return !is_sleep || holds_ == 0; };
        while (!free()) {
            if (Clock::now() >= deadline)
                return make_error(ErrorCode::timed_out, "{} and did not resume in time", k_held_back);
            lock.unlock();
            const bool wanted = keep_going();
            lock.lock();
            if (!wanted) return make_error(ErrorCode::cancelled, "the request was withdrawn");
            changed_.wait_until(mutex_, std::min(deadline, Clock::now() + k_look), free);
        }
        busy_ = true;
        return {};
    }
    void leave() {
        const MutexLock lock(mutex_);
        busy_ = false;
        changed_.notify_all();
    }
    /// Whether somebody holds sleeps back now.
    [[nodiscard]] bool is_held() const {
        const MutexLock lock(mutex_);
        return holds_ > 0;
    }

    /// Counts a hold; waits for the end of an operation under way unless `within_operation` (a callback of it
    /// calls).
    void hold(bool within_operation) {
        MutexLock lock(mutex_);
        if (!within_operation) changed_.wait(mutex_, [this]() GPU_SLEEP_REQUIRES(mutex_) { return !busy_; });
        ++holds_;
    }
    /// Errors: invalid_argument (no hold is open).
    [[nodiscard]] Result<void> resume() {
        const MutexLock lock(mutex_);
        if (holds_ == 0) return make_error(ErrorCode::invalid_argument, "nothing holds sleeps back");
        --holds_;
        changed_.notify_all();
        return {};
    }

private:
    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    Condition changed_;
    bool busy_ GPU_SLEEP_GUARDED_BY(mutex_) = false;
    unsigned holds_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
};

/// Thread-safe.
class Inhibitors {
public:
    /// Inhibits from outside: for `time`, or without one until lift(). In place of an earlier one.
    void set(std::optional<Milliseconds> time) noexcept {
        const MutexLock lock(mutex_);
        until_ = time ? Clock::now() + *time : Clock::time_point::max();
    }
    /// Ends that. What the program itself inhibits stays.
    void lift() noexcept {
        const MutexLock lock(mutex_);
        until_ = {};
    }

    /// The program inhibits once more.
    void add() noexcept {
        const MutexLock lock(mutex_);
        ++own_;
    }
    /// Errors: invalid_argument (it does not inhibit).
    [[nodiscard]] Result<void> remove() {
        const MutexLock lock(mutex_);
        if (own_ == 0) return make_error(ErrorCode::invalid_argument, "the program does not inhibit sleeps");
        --own_;
        return {};
    }

    struct Inhibited {
        std::optional<double> seconds; ///< still; unset where there is no limit
    };
    /// Nothing where sleeps may come.
    [[nodiscard]] std::optional<Inhibited> now() const noexcept {
        const auto time = Clock::now();
        const MutexLock lock(mutex_);
        if (own_ > 0 || until_ == Clock::time_point::max()) return Inhibited{};
        if (until_ <= time) return std::nullopt;
        return Inhibited{std::chrono::duration<double>(until_ - time).count()};
    }

private:
    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    unsigned own_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    Clock::time_point until_ GPU_SLEEP_GUARDED_BY(mutex_){}; ///< from outside; max() without a limit
};

} // namespace gpu_sleep::agent::operations
