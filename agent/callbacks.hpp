// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's callbacks: registered, run one after another on a thread of their own, each within a
// deadline.

#pragma once

#include "base/result.hpp"
#include "base/units.hpp"
#include "gpu_sleep/gpu_sleep.h"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace gpu_sleep::agent {

/// What callbacks are told; gpu_sleep_event made of it points into it.
struct Event {
    int level = 0;
    std::vector<std::string> tags;
    std::vector<std::string> dropped_tags;
};

/// Thread-safe. Never destroyed: a late callback may still run when the process ends.
class Callbacks {
public:
    /// Returns the id for remove().
    int add(gpu_sleep_callback before_sleep, gpu_sleep_callback after_wake, void* user,
            Milliseconds deadline);
    /// Waits until the callbacks of `id` no longer run, unless called from a callback. Errors:
    /// invalid_argument.
    [[nodiscard]] Result<void> remove(int id);

    /// Runs the before-sleep callbacks in order. Errors: refused, timed_out. The ids of those that returned 0
    /// are added to `ran`, also when a later one failed.
    [[nodiscard]] Result<void> run_before_sleep(const Event& event, Clock::time_point deadline,
                                                std::vector<int>& ran);

    /// Runs the after-wake callbacks in order, all of them, or those of `only`. A late or failing one does
    /// not stop the others. Returns a sentence for each that failed.
    [[nodiscard]] std::vector<std::string> run_after_wake(const Event& event, Clock::time_point deadline,
                                                          const std::vector<int>* only = nullptr);

    /// Whether the calling thread runs callbacks.
    [[nodiscard]] static bool is_callback_thread() noexcept;

private:
    struct Entry {
        int id;
        gpu_sleep_callback before_sleep;
        gpu_sleep_callback after_wake;
        void* user;
        Milliseconds deadline;
    };
    struct Job {
        Entry entry;
        gpu_sleep_callback function;
        Event event;
        int result = 0;
        bool done = false;
    };

    [[nodiscard]] std::vector<Entry> snapshot();
    /// The callback's value. Errors: timed_out (it still runs, or an earlier one does), internal.
    [[nodiscard]] Result<int> run(const Entry& entry, gpu_sleep_callback function, const Event& event,
                                  Clock::time_point deadline);
    [[nodiscard]] Result<void> start_thread();
    void serve();

    std::mutex mutex_; ///< guards all below; not held while a callback runs
    std::condition_variable changed_;
    std::vector<Entry> entries_;
    std::shared_ptr<Job> job_; ///< waiting or running
    bool has_thread_ = false;
    int next_id_ = 1;
};

} // namespace gpu_sleep::agent
