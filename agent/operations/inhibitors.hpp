// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whether this process is not to be put to sleep from outside, and for how long.

#pragma once

#include "base/error.hpp"
#include "base/thread_safety.hpp"
#include "base/units.hpp"
#include "common/lock_order.hpp"

#include <optional>

namespace gpu_sleep::agent::operations {

/// Thread-safe.
class Inhibitors {
public:
    /// Inhibits from outside: for `time`, or without one until lift(). In place of an earlier one.
    void set(std::optional<Milliseconds> time) noexcept;
    /// Ends that. What the program itself inhibits stays.
    void lift() noexcept;

    /// The program inhibits once more.
    void add() noexcept;
    /// Errors: invalid_argument (it does not inhibit).
    [[nodiscard]] Result<void> remove();

    struct Inhibited {
        std::optional<double> seconds; ///< still; unset where there is no limit
    };
    /// Nothing where sleeps may come.
    [[nodiscard]] std::optional<Inhibited> now() const noexcept;

private:
    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    unsigned own_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    Clock::time_point until_ GPU_SLEEP_GUARDED_BY(mutex_){}; ///< from outside; max() without a limit
};

} // namespace gpu_sleep::agent::operations
