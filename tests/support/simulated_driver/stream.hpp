// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Streams: queues of work, each run in order by a thread of its own, later than it was submitted.

#pragma once

#include "support/not_copied.hpp"

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace gpu_sleep::sim {

class Context;
struct Capture;

/// How far a stream is. Thread-safe; outlives the stream.
class Timeline {
public:
    virtual ~Timeline() = default;
    void complete(std::uint64_t number);
    void wait_for(std::uint64_t number);
    [[nodiscard]] virtual bool reached(std::uint64_t number);

private:
    std::mutex mutex_; ///< guards completed_; innermost
    std::atomic<std::uint32_t> changes_{0};
    std::uint64_t completed_ = 0;
};

/// A piece of work in a stream, to wait for. The empty ticket is always done.
struct Ticket {
    std::shared_ptr<Timeline> timeline;
    std::uint64_t number = 0;

    void wait() const {
        if (timeline) timeline->wait_for(number);
    }
    [[nodiscard]] bool done() const { return !timeline || timeline->reached(number); }
};

/// A queue of work and its thread, which starts with the first work. Submitted to under the driver's lock, so
/// that all streams agree on the order of submission; the thread holds no lock while it runs work.
class Stream : test::NotCopied {
public:
    using Task = std::function<void()>;
    enum class Kind : std::uint8_t { legacy, blocking, non_blocking };

    Stream(Context& owner, Kind kind) : context(owner), kind_(kind) {}
    ~Stream();

    /// Starts the thread unless it runs. Throws std::system_error where none can be had; nothing has changed.
    void start();
    /// Queues `task`, to run once everything submitted before and all of `after` is done. It may be empty.
    /// Throws as start() does.
    Ticket submit(std::vector<Ticket> after, Task task);
    /// The newest work.
    [[nodiscard]] Ticket last() const { return {timeline_, submitted_}; }
    [[nodiscard]] bool idle() const { return last().done(); }

    /// Lets the thread end once all work is done; nothing may be submitted any more.
    void close();
    /// Whether the thread, told to close, has nothing left to do.
    [[nodiscard]] bool closed_and_done() const { return closing_ && idle(); }
    [[nodiscard]] bool closed() const { return closing_; }
    /// Closes, and drops what has not started: those who wait for it go on.
    void abandon();
    /// Waits for the thread to end.
    void join();
    [[nodiscard]] const std::atomic<bool>& abandoned() const noexcept { return abandoned_; }

    [[nodiscard]] Kind kind() const noexcept { return kind_; }
    [[nodiscard]] bool blocks_legacy() const noexcept { return kind_ == Kind::blocking; }

    Context& context;                 ///< outlives the stream's work
    std::shared_ptr<Capture> capture; ///< that this stream is part of; guarded by the driver's lock

private:
    struct Item {
        std::vector<Ticket> after;
        Task task;
    };
    void work();

    const Kind kind_;
    const std::shared_ptr<Timeline> timeline_ = std::make_shared<Timeline>();
    std::uint64_t submitted_ = 0; ///< guarded by the driver's lock
    std::atomic<bool> closing_{false}, abandoned_{false};
    std::mutex mutex_; ///< guards queue_
    std::condition_variable queued_;
    std::deque<Item> queue_;
    std::thread thread_;
};

} // namespace gpu_sleep::sim
