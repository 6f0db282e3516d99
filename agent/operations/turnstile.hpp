// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Keeps sleeps out while the program holds them back, and lets no hold begin while an operation lasts.

#pragma once

#include "base/error.hpp"
#include "base/thread_safety.hpp"
#include "base/units.hpp"
#include "common/lock_order.hpp"

#include <functional>

namespace gpu_sleep::agent::operations {

/// What whoever wants a sleep is told while Turnstile::is_held().
inline constexpr const char* k_held_back = "the program holds sleeps back (gpu_sleep_hold)";

/// Thread-safe. Operations that sleep wait for holds; holds wait for operations.
class Turnstile {
public:
    /// For a sleep, waits until nobody holds sleeps back. `keep_going` is asked ten times a second. Called on
    /// the operations thread, where no other operation is under way: not between enter() and leave(). Errors:
    /// timed_out, cancelled.
    [[nodiscard]] Result<void> enter(bool is_sleep, Clock::time_point deadline,
                                     const std::function<bool()>& keep_going);
    void leave();
    /// Whether somebody holds sleeps back now.
    [[nodiscard]] bool is_held() const;

    /// Counts a hold; waits for the end of an operation under way unless `within_operation` (a callback of it
    /// calls).
    void hold(bool within_operation);
    /// Errors: invalid_argument (no hold is open).
    [[nodiscard]] Result<void> resume();

private:
    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    Condition changed_;
    bool busy_ GPU_SLEEP_GUARDED_BY(mutex_) = false;
    unsigned holds_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
};

} // namespace gpu_sleep::agent::operations
