// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the program could not have for want of GPU memory.

#pragma once

#include "base/thread_safety.hpp"
#include "base/units.hpp"
#include "common/lock_order.hpp"

#include <optional>
#include <utility>

namespace gpu_sleep::agent {

/// Keeps one until the program's user is told, which is done once. Thread-safe.
class Shortage {
public:
    struct Lack {
        int device = 0;
        Bytes bytes = 0; ///< that an allocation asked for
    };

    /// Whether somebody should look who has the memory: not once that was said, nor again just now.
    bool note(Lack lack) noexcept {
        constexpr Milliseconds k_between{1'000};
        const MutexLock lock(mutex_);
        if (is_said_ || Clock::now() < next_) return false;
        next_ = Clock::now() + k_between;
        lack_ = lack;
        return true;
    }
    [[nodiscard]] std::optional<Lack> take() noexcept {
        const MutexLock lock(mutex_);
        return std::exchange(lack_, std::nullopt);
    }
    void set_said() noexcept {
        const MutexLock lock(mutex_);
        is_said_ = true;
    }

private:
    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::optional<Lack> lack_ GPU_SLEEP_GUARDED_BY(mutex_);
    Clock::time_point next_ GPU_SLEEP_GUARDED_BY(mutex_);
    bool is_said_ GPU_SLEEP_GUARDED_BY(mutex_) = false;
};

} // namespace gpu_sleep::agent
