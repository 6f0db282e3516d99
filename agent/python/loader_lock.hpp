// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whether a thread that waits may hold the loader's lock, as those do that run a library's constructor.

#pragma once

#include "base/thread_safety.hpp"
#include "base/units.hpp"
#include "common/lock_order.hpp"

#include <cstdint>

namespace gpu_sleep::python {

/// A thread of its own takes the lock when asked to: once it has had it, nobody who has waited since the
/// question holds it. Nobody else need wait for the lock to know. Thread-safe. Never destroyed once it is
/// watched.
class LoaderLock {
public:
    /// Starts the thread, unless it runs: beforehand, for that may take the lock. Where there is no thread to
    /// be had nothing is ever known.
    void watch() noexcept;
    /// Asks. Returns the question's number, which is never 0.
    [[nodiscard]] std::uint64_t ask() noexcept;
    /// Whether the lock was free at some time since the question, as is known after `moment` at most.
    [[nodiscard]] bool was_free(std::uint64_t question, Milliseconds moment) noexcept;

private:
    [[noreturn]] void answer_for_ever();

    Mutex mutex_
        GPU_SLEEP_ACQUIRED_AFTER(agent::lock_order::innermost); ///< the loader's lock is not taken under it
    Condition asked_, answered_;
    std::uint64_t last_question_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    std::uint64_t last_answer_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    bool is_watched_ GPU_SLEEP_GUARDED_BY(mutex_) = false;
};

} // namespace gpu_sleep::python
