// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Streams and their threads.

#include "support/simulated_driver/stream.hpp"

#include "support/not_copied.hpp"
#include "support/simulated_driver/checkpoint_gate.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <utility>

namespace gpu_sleep::sim {
namespace {

/// A thread that is started meanwhile takes no signals of the program, which are for its own threads; faults
/// are the guarded code's.
class OwnSignalsOnly : test::NotCopied {
public:
    OwnSignalsOnly() noexcept {
        sigset_t all;
        sigfillset(&all);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, fault);
        ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~OwnSignalsOnly() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_{};
};

} // namespace

void Timeline::complete(std::uint64_t number) {
    {
        const std::lock_guard lock(mutex_);
        completed_ = number;
    }
    ++changes_;
    ::syscall(SYS_futex, &changes_, FUTEX_WAKE_PRIVATE, INT_MAX);
}

// The driver's waits are cancellation points, and can be left by siglongjmp(). No condition variable can: it
// counts those that wait.
void Timeline::wait_for(std::uint64_t number) {
    constexpr timespec k_ask_again{0, 10'000'000};
    for (;;) {
        const auto changes = changes_.load();
        if (reached(number)) return;
        ::pthread_testcancel();
        ::syscall(SYS_futex, &changes_, FUTEX_WAIT_PRIVATE, changes, &k_ask_again);
    }
}

bool Timeline::reached(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    return completed_ >= number;
}

Stream::~Stream() {
    close();
    join();
}

void Stream::start() {
    if (thread_.joinable()) return;
    const OwnSignalsOnly scope;
    thread_ = std::thread([this] { work(); });
}

Ticket Stream::submit(std::vector<Ticket> after, Task task) {
    start(); // what is queued without a thread would never be done
    note_work_submitted();
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back({std::move(after), std::move(task)});
    }
    ++submitted_;
    queued_.notify_one();
    return last();
}

void Stream::work() {
    for (std::uint64_t number = 1;; ++number) {
        Item item;
        {
            std::unique_lock lock(mutex_);
            queued_.wait(lock, [&] { return !queue_.empty() || closing_; });
            if (queue_.empty()) return;
            item = std::move(queue_.front());
            queue_.pop_front();
        }
        for (const auto& ticket : item.after) ticket.wait();
        if (item.task && !abandoned_) item.task();
        item.task = nullptr;
        timeline_->complete(number);
        note_work_done();
    }
}

void Stream::close() {
    {
        const std::lock_guard lock(mutex_);
        closing_ = true;
    }
    queued_.notify_one();
}

void Stream::abandon() {
    abandoned_ = true;
    close();
}

void Stream::join() {
    if (thread_.joinable()) thread_.join();
}

} // namespace gpu_sleep::sim
