// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The door: requests by HTTP, given to the program behind it, and the threads that carry them out.

#pragma once

#include "cli/http/admission.hpp"
#include "cli/http/backend.hpp"

namespace gpu_sleep::cli::http {

/// Runs jobs one after another, in the order in which they came. Thread-safe.
class Lane {
public:
    ~Lane() { close(); }

    /// Runs what waits, and takes no more. Not for two threads at once.
    void close() {
        thread_.request_stop();
        if (thread_.joinable()) thread_.join();
    }

    /// False where it is closed: the job is not taken then.
    [[nodiscard]] bool add(std::function<void()> job) {
        const std::lock_guard guard(mutex_);
        if (thread_.get_stop_token().stop_requested()) return false;
        jobs_.push_back(std::move(job));
        changed_.notify_one();
        return true;
    }

private:
    void run(const std::stop_token& stop) {
        std::unique_lock guard(mutex_);
        for (;;) {
            if (!changed_.wait(guard, stop, [&] { return !jobs_.empty(); })) return;
            const auto job = std::move(jobs_.front());
            jobs_.pop_front();
            guard.unlock();
            job();
            guard.lock();
        }
    }

    std::mutex mutex_; ///< of the jobs
    std::condition_variable_any changed_;
    std::deque<std::function<void()>> jobs_;
    std::jthread thread_{[this](const std::stop_token& stop) { run(stop); }}; // the last: it uses the others
};

/// Answers until what it returns is let go, which withdraws what is under way, as far as that goes, and
/// answers what waits. One thread speaks HTTP and waits for nothing else; one asks how the program stands,
/// one measures, and one puts it to sleep and wakes it, in the order of the requests. `listener` listens, and
/// has a non-blocking socket. The owner has no type, so that libmicrohttpd stays out of this header. Errors:
/// io_failed.
[[nodiscard]] Result<std::shared_ptr<void>> serve(UniqueFd listener, Admission admission, Backend backend);

} // namespace gpu_sleep::cli::http
