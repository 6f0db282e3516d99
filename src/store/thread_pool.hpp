// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A few threads that run posted jobs in order.

#pragma once

#include "base/result.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace gpu_sleep::store {

/// Thread-safe. Signals are blocked in its threads.
class ThreadPool {
public:
    /// A job. It receives the number of its thread, below count(). Must not throw.
    using Job = std::function<void(std::size_t worker)>;

    /// Starts as many threads as can be had, up to `threads`. `name` has at most 15 characters. Errors:
    /// out_of_threads (not one could be started).
    [[nodiscard]] static Result<std::unique_ptr<ThreadPool>> start(const char* name, unsigned threads);

    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;
    /// Ends the threads when all posted jobs are done.
    ~ThreadPool();

    /// If it throws because memory runs out, nothing was posted.
    void post(Job job);
    [[nodiscard]] std::size_t count() const noexcept { return threads_.size(); }

private:
    ThreadPool() = default;
    void work(std::size_t worker);

    std::vector<std::thread> threads_; ///< not changed after start
    std::mutex mutex_;                 ///< guards all below
    std::condition_variable changed_;
    std::deque<Job> jobs_;
    bool ends_ = false;
};

} // namespace gpu_sleep::store
