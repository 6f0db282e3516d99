// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Streams and their threads.

#include "support/simulated_driver/stream.hpp"

#include <csignal>
#include <utility>

namespace gpu_sleep::sim {

void Timeline::complete(std::uint64_t number) {
    {
        const std::lock_guard lock(mutex_);
        completed_ = number;
    }
    changed_.notify_all();
}

void Timeline::wait_for(std::uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return completed_ >= number; });
}

bool Timeline::reached(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    return completed_ >= number;
}

Stream::~Stream() {
    close();
    join();
}

void Stream::start_thread() {
    // The program's signals are for its own threads; faults are the guarded code's.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, fault);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { work(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Ticket Stream::submit(std::vector<Ticket> after, Task task) {
    ++submitted_;
    {
        const std::lock_guard lock(mutex_);
        queue_.push_back({std::move(after), std::move(task)});
    }
    if (thread_.joinable())
        queued_.notify_one();
    else
        start_thread();
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
