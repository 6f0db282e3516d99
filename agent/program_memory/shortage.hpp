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

/// Keeps the first, of which the program's user is told. Thread-safe.
class Shortage {
public:
    struct Lack {
        int device = 0;
        Bytes bytes = 0; ///< that an allocation asked for
    };

    /// Whether it is the first.
    bool note(Lack lack) noexcept {
        const MutexLock lock(mutex_);
        if (has_been_) return false;
        has_been_ = true;
        lack_ = lack;
        return true;
    }
    /// It, once.
    [[nodiscard]] std::optional<Lack> take() noexcept {
        const MutexLock lock(mutex_);
        return std::exchange(lack_, std::nullopt);
    }

private:
    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::optional<Lack> lack_ GPU_SLEEP_GUARDED_BY(mutex_);
    bool has_been_ GPU_SLEEP_GUARDED_BY(mutex_) = false;
};

} // namespace gpu_sleep::agent
