// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Threads and their queue of jobs.

#include "store/thread_pool.hpp"

#include "base/quiet_thread.hpp"

#include <utility>

namespace gpu_sleep::store {

Result<std::unique_ptr<ThreadPool>> ThreadPool::start(const char* name, unsigned threads) {
    std::unique_ptr<ThreadPool> workers(new ThreadPool());
    workers->threads_.reserve(threads); // a thread that is started has a place
    for (std::size_t i = 0; i < threads; ++i) {
        auto thread = start_quiet_thread(name, [raw = workers.get(), i] { raw->work(i); });
        if (!thread && i == 0) return std::move(thread).error();
        if (!thread) break; // fewer do the same work
        workers->threads_.push_back(*std::move(thread));
    }
    return workers;
}

ThreadPool::~ThreadPool() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
}

void ThreadPool::post(Job job) {
    // Notified with the lock held: once the job is done, whoever waits for it may destroy this.
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_one();
}

void ThreadPool::work(std::size_t worker) {
    for (;;) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        const auto job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job(worker);
    }
}

} // namespace gpu_sleep::store
