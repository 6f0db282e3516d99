// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A thread and what waits for it, so that a long request delays no short one.

#pragma once

#include "base/units.hpp"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace gpu_sleep::cli::http {

/// Runs jobs one after another, in the order in which they came. Thread-safe.
class Lane {
public:
    explicit Lane(std::size_t most) : most_(most), thread_([this] { run(); }) {}
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;
    ~Lane() { close(); }

    /// Runs what waits, and takes no more. Not for two threads at once.
    void close() {
        {
            const std::lock_guard guard(mutex_);
            is_closed_ = true;
        }
        changed_.notify_one();
        if (thread_.joinable()) thread_.join();
    }

    /// False where it is closed, or as many wait as may: the job is not taken then.
    [[nodiscard]] bool add(std::function<void()> job) {
        const std::lock_guard guard(mutex_);
        if (is_closed_ || jobs_.size() >= most_) return false;
        jobs_.push_back(std::move(job));
        changed_.notify_one();
        return true;
    }

private:
    void run() {
        std::unique_lock guard(mutex_);
        for (;;) {
            changed_.wait(guard, [&] { return is_closed_ || !jobs_.empty(); });
            if (jobs_.empty()) return;
            const auto job = std::move(jobs_.front());
            jobs_.pop_front();
            guard.unlock();
            job();
            guard.lock();
        }
    }

    const std::size_t most_;
    std::mutex mutex_; ///< of the jobs, and of whether it is closed
    std::condition_variable changed_;
    std::deque<std::function<void()>> jobs_;
    bool is_closed_ = false;
    std::thread thread_;
};

} // namespace gpu_sleep::cli::http
