// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Starting threads that take no signals but their own, their queue of jobs, and telling of the end of a
// call.

#include "base/threads.hpp"

#include "base/guard.hpp"
#include "base/thread_safety.hpp"

#include <pthread.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace gpu_sleep {
namespace {

/// Signals that a thread causes itself. If one is blocked, it ends the process, though the program may handle
/// it: code of runtimes that do may run on a thread of ours. Source: sigprocmask(2), NOTES.
constexpr int k_synchronous[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};

/// For good on the calling thread: a callback's thread is known to the program, which may cancel it, and
/// unwinding our frames would end the process. Source: pthread_setcancelstate(3).
void refuse_cancellation() noexcept {
    int before = 0;
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
}

} // namespace

SignalsBlocked::SignalsBlocked() noexcept {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int signal : k_synchronous) sigdelset(&blocked, signal);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
}

Result<std::thread> start_quiet_thread(const char* name, std::function<void()> body) {
    const SignalsBlocked blocked; // a thread inherits the mask it is started under
    try {
        std::thread thread([body = std::move(body)] {
            refuse_cancellation();
            body();
        });
        const StandardNumbers filled; // another thread's name is a file that the C library opens
        pthread_setname_np(thread.native_handle(), name);
        return thread;
    } catch (const std::system_error& failure) {
        return make_error(ErrorCode::out_of_threads, "cannot start a thread: {}", failure.what());
    }
}

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
        const MutexLock lock(mutex_);
        ends_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
}

void ThreadPool::post(Job job) {
    // Notified with the lock held: once the job is done, whoever waits for it may destroy this.
    const MutexLock lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_one();
}

void ThreadPool::work(std::size_t worker) {
    for (;;) {
        MutexLock lock(mutex_);
        changed_.wait(mutex_, [this]() GPU_SLEEP_REQUIRES(mutex_) { return ends_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        const auto job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job(worker);
    }
}

namespace {

std::atomic<int> s_under_way{0};

} // namespace

struct BackgroundCall::State {
    UniqueFd end;
    Mutex mutex;
    std::optional<Result<void>> result GPU_SLEEP_GUARDED_BY(mutex);
    UniqueFd kept GPU_SLEEP_GUARDED_BY(mutex);
};

Result<BackgroundCall> BackgroundCall::start(std::function<Result<void>()> call) {
    auto state = std::make_shared<State>();
    state->end = opened([&] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
    if (!state->end) return errno_error(ErrorCode::io_failed, errno, "eventfd", "cannot start a call");
    ++s_under_way;
    auto thread = start_quiet_thread("gpu-sleep-call", [state, call = std::move(call)] {
        auto result = guarded([&] { return call(); });
        --s_under_way;
        {
            const MutexLock lock(state->mutex);
            state->result = std::move(result);
            state->kept.reset();
        }
        ::eventfd_write(state->end.get(), 1);
    });
    if (!thread) {
        --s_under_way;
        return std::move(thread).error();
    }
    thread->detach();
    return BackgroundCall(std::move(state));
}

int BackgroundCall::end_fd() const noexcept {
    return state_->end.get();
}

std::optional<Result<void>> BackgroundCall::result() const {
    const MutexLock lock(state_->mutex);
    return state_->result;
}

void BackgroundCall::close_after(UniqueFd fd) {
    const MutexLock lock(state_->mutex);
    if (!state_->result) state_->kept = std::move(fd);
}

bool BackgroundCall::is_any_under_way() noexcept {
    return s_under_way > 0;
}

} // namespace gpu_sleep
