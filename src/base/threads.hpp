// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Threads inside somebody else's process, which take none of its signals: one of them, a few that run
// posted jobs in order, and a call that may take long, beside a poll loop.

#pragma once

#include "base/error.hpp"
#include "base/fd.hpp"
#include "base/thread_safety.hpp"

#include <atomic>
#include <csignal>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace gpu_sleep {

/// While it exists, the calling thread takes no signals but those that it causes itself, such as SIGSEGV.
class SignalsBlocked {
public:
    SignalsBlocked() noexcept;
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_{};
};

/// Starts a thread that blocks all signals, because they belong to the program's own threads, except those
/// that a thread causes itself, such as SIGSEGV. The thread cannot be cancelled. `name` has at most 15
/// characters. `body` must not throw. Errors: out_of_threads (the system gives none).
[[nodiscard]] Result<std::thread> start_quiet_thread(const char* name, std::function<void()> body);

/// The first failure of several threads. Thread-safe.
class FirstFailure {
public:
    void note(Error error) noexcept {
        const MutexLock lock(mutex_);
        if (!error_) error_ = std::move(error);
        has_failed_ = true;
    }
    [[nodiscard]] const std::atomic<bool>& has_failed() const noexcept { return has_failed_; }
    [[nodiscard]] Result<void> result() const {
        const MutexLock lock(mutex_);
        return error_ ? Result<void>(*error_) : Result<void>();
    }

private:
    mutable Mutex mutex_;
    std::optional<Error> error_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::atomic<bool> has_failed_{false};
};

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
    Mutex mutex_;
    Condition changed_;
    std::deque<Job> jobs_ GPU_SLEEP_GUARDED_BY(mutex_);
    bool ends_ GPU_SLEEP_GUARDED_BY(mutex_) = false;
};

/// A call on a thread of its own. Move-only. Destroyed while the call is under way, it leaves it to itself:
/// nobody can end a call of the driver.
class BackgroundCall {
public:
    /// Errors: out_of_threads, io_failed (no descriptor is left).
    [[nodiscard]] static Result<BackgroundCall> start(std::function<Result<void>()> call);

    /// Readable once the call has ended.
    [[nodiscard]] int end_fd() const noexcept;
    /// Nothing before it has ended.
    [[nodiscard]] std::optional<Result<void>> result() const;

    /// Closes `fd` when the call has ended, and not before.
    void close_after(UniqueFd fd);

    /// Whether any of this process is under way. Then it must not run its exit handlers, among which are
    /// those of the library that is being called.
    [[nodiscard]] static bool is_any_under_way() noexcept;

private:
    struct State;
    explicit BackgroundCall(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
    std::shared_ptr<State> state_; ///< shared with the thread
};

} // namespace gpu_sleep
