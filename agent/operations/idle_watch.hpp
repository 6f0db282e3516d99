// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Since when the program has given the GPU no work, and the GPU has had none of it to do.

#pragma once

#include "common/lock_order.hpp"
#include "driver/api.hpp"

namespace gpu_sleep::agent::operations {

/// Counts, and takes no time where the program works: now and then somebody compares how many touches have
/// passed the gate. Only when they stand still is the GPU asked, and no more once it was found idle. So what
/// it says is late by up to two such looks, and never early. Thread-safe.
class IdleWatch {
public:
    /// Compares. True: the GPU is to be asked, by ask(). Cheap; calls no driver.
    [[nodiscard]] bool look() noexcept;
    /// Asks the GPU, if look() has said so since the last time. On the operations thread, while the driver
    /// may be called. May throw for want of memory.
    void ask(const driver::Api& api);

    /// Memory is back, all or a part: idleness begins anew.
    void note_wake() noexcept {
        const MutexLock lock(mutex_);
        since_.reset();
    }
    /// The gate was shut, the GPU was drained, and memory sleeps or the program is paused.
    void note_sleep() noexcept;

    /// For how long; 0 while it works, nothing where that cannot be known: where the program's calls are not
    /// intercepted, or not all of them, or the driver cannot be asked.
    [[nodiscard]] std::optional<double> seconds() const noexcept {
        const auto idle = now();
        return idle ? std::optional(idle->seconds) : std::nullopt;
    }

    struct Idle {
        double seconds = 0;
        std::uint64_t touches = 0; ///< so far, when it became idle; work since then raises the number
    };
    /// The same with that number, after a look whether all of the program's use of the GPU is seen. May throw
    /// for want of memory.
    [[nodiscard]] std::optional<Idle> find() const;

private:
    [[nodiscard]] std::optional<Idle> now() const noexcept;

    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::uint64_t touches_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;              ///< at the last look
    std::optional<Clock::time_point> since_ GPU_SLEEP_GUARDED_BY(mutex_); ///< while it is known to be idle
    bool asks_ GPU_SLEEP_GUARDED_BY(mutex_) = false;                      ///< the GPU is to be asked
    bool is_known_ GPU_SLEEP_GUARDED_BY(mutex_) = true;
};

} // namespace gpu_sleep::agent::operations
