// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The control side of the agent: one thread that listens and answers questions, and one that runs operations.

#pragma once

#include "server/connection.hpp"
#include "server/endpoint.hpp"
#include "server/request_queue.hpp"
#include "server/shared_memory.hpp"

#include <pthread.h>

namespace gpu_sleep::agent::server {

/// The calls of the server to the agent.
class Operations {
public:
    virtual ~Operations() = default;
    /// Called on the listening thread.
    [[nodiscard]] virtual model::Report status() = 0;
    /// Called on both threads: what status() says of all memory. Allocates nothing.
    [[nodiscard]] virtual model::State state() noexcept = 0;
    /// Called on the listening thread: answers another process of this user that has a handle of memory.
    [[nodiscard]] virtual Result<SharedMemory> share(const model::SharedMemoryRequest& request,
                                                     pid_t asker) = 0;
    /// Called on the operations thread, one at a time. A wake is tried once: one that fails for want of GPU
    /// memory is called again while it may wait for it.
    [[nodiscard]] virtual Outcome run(const Operation& operation, const Asking& asking) = 0;
    /// Called on the operations thread: its name, as the process stands now; see k_work_thread.
    [[nodiscard]] virtual const char* work_thread_name() noexcept = 0;
    /// Called on the operations thread: how long at least until it is.
    [[nodiscard]] virtual Milliseconds pause_between_tries() const noexcept = 0;
    /// Called once for each operation, on the thread that ends it, before the asker hears of it: how it
    /// ended. No retry of a wake that goes on waiting is an end.
    virtual void ended(const Job& job, const Outcome& outcome) noexcept = 0;
    /// Called on both threads: the place in the line of those that make room; 0 without.
    [[nodiscard]] virtual std::uint32_t place() const noexcept = 0;
    /// Called on both threads: no wake that makes room waits any more.
    virtual void leave_line() noexcept = 0;
    /// Called on the listening thread: inhibits sleeps from outside, or no longer.
    virtual void inhibit(const model::InhibitRequest& request) noexcept = 0;
    /// Likewise: sets the process's own timer.
    virtual void set_timer(const model::TimerRequest& request) = 0;
    /// Called on the listening thread: returns at once, and calls no driver. It is called again two seconds
    /// later, or after the pause that it returns, if that is less.
    [[nodiscard]] virtual Milliseconds look() noexcept = 0;
    /// Called on the operations thread while nobody waits for an operation: does a little of the work that
    /// nobody should wait for. False when none is left.
    [[nodiscard]] virtual bool tidy() = 0;
};

/// Owns the two threads, the socket and the connections. Never destroyed: its threads end with the process.
class Server {
public:
    explicit Server(Operations& operations) noexcept : operations_(operations) {}

    /// Starts the threads. Without a socket (logged) only post() works. Errors: refused (another copy
    /// of the agent is at work in this process), out_of_threads: it may be tried again, and there is no
    /// socket until then.
    [[nodiscard]] Result<void> start();

    /// Runs `operation` on the operations thread and waits for it; `progress` may withdraw it, as a command
    /// may. Thread-safe.
    [[nodiscard]] Outcome post(
        Operation operation, ProgressSink progress = [](const model::Progress&) { return true; });

    /// A wake for touches, without waiting for it. It is tried as long as GPU memory is short and `is_wanted`
    /// says so: it is told of each shortage, then the outcome, on one of the two threads.
    void submit_for_touch(model::WakeRequest request, std::function<bool()> is_wanted,
                          std::function<void(const Error&)> on_shortage,
                          std::function<void(const Outcome&)> done);

    /// A sleep that the agent itself asks for, without waiting for it; not while there is anything else to
    /// run. `done` is called on one of the two threads.
    void submit_if_free(model::IdleSleepRequest request, std::function<void(const Outcome&)> done);

    /// Has the operations thread tidy up when the time is over, or before, once it has no operation to run.
    /// Takes no memory, and waits for nobody who does anything else meanwhile: it is called where the program
    /// frees memory. Thread-safe.
    void tidy_within(Milliseconds delay) noexcept;

    /// Shows to those who cannot ask that the process has another name than its environment gave it.
    /// Thread-safe.
    void show_renamed();

    /// Adds events to the user's history. On the operations thread, while nobody waits for an operation.
    void record(const std::vector<model::Event>& events) noexcept;

    /// Removes the socket's file: the process is ending.
    void remove_endpoint() noexcept;
    /// Closes what a child inherited across fork(). Async-signal-safe.
    void close_in_child() noexcept { endpoint_.close_in_child(); }

private:
    void listen_for_ever();
    /// Waits for something to do, for k_tick at most, and does it. Looks after the socket's file at
    /// `next_look`.
    void listen_once(Clock::time_point& next_look);
    void operate_for_ever();
    void operate(RequestQueue::Place& place);
    /// By the operations thread's name, the time of the socket's file, and the file beside it, for who cannot
    /// ask. On that thread.
    void show_state(bool may_have_changed) noexcept;
    [[nodiscard]] Outcome outcome_of(RequestQueue::Place& place) noexcept;
    /// Returns the agent's status of the process, with the wakes that wait.
    [[nodiscard]] model::Report status();
    void keep_in_place();
    void accept_all();
    /// Where there are no descriptors, or no memory, for those in line.
    void make_room();
    /// Answers what takes no turn. False: it is an operation.
    [[nodiscard]] bool answer_at_once(Connection& connection, const protocol::Request& request);
    /// Reads and acts. False when the connection is finished with, or has gone to the operations thread.
    [[nodiscard]] bool attend(std::unique_ptr<Connection>& connection);
    void enqueue(Job job) {
        {
            const MutexLock lock(mutex_);
            queue_.add(std::move(job));
        }
        job_added_.notify_one();
    }
    [[nodiscard]] bool has_jobs() {
        const MutexLock lock(mutex_);
        return !queue_.is_empty();
    }
    /// Takes no memory.
    [[nodiscard]] Outcome failure(Error error) noexcept {
        return model::Failure{std::move(error), operations_.state()};
    }
    /// Tells the asker. Logs an error if there is no memory for it: who waits in the process is always told.
    void answer(const Job& job, Outcome outcome) noexcept;
    /// Has the agent leave the line of those that make room, if nobody here stands there.
    void leave_line_unless(bool makes_room) noexcept {
        if (!makes_room) operations_.leave_line();
    }
    /// Answers those that have waited for as long as they may: none begins after its time. `own_alone`: only
    /// the program's own, on whose threads nothing is written to a socket.
    void expire_jobs(bool own_alone);

    Operations& operations_;
    std::atomic<pid_t> stopped_asker_{0}; ///< Connection::stopped_peer() of the operation that runs
    bool is_operating_ = false;           ///< the operations thread runs; used by start() alone
    Endpoint endpoint_;                   ///< used by the listening thread, and at fork and exit
    std::atomic<bool> is_rooted_{false};  ///< the listening thread has its own root, or does without
    std::atomic<bool> is_ending_{false};  ///< the process
    std::vector<std::unique_ptr<Connection>> connections_; ///< used by the listening thread alone

    const char* work_thread_name_ = k_work_thread; ///< used by the operations thread alone

    Mutex thread_mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::optional<pthread_t> listener_ GPU_SLEEP_GUARDED_BY(thread_mutex_);
    bool is_renamed_ GPU_SLEEP_GUARDED_BY(thread_mutex_) = false;

    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    Condition job_added_;
    RequestQueue queue_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::optional<Clock::time_point>
        tidy_at_ GPU_SLEEP_GUARDED_BY(mutex_); ///< when there is something to tidy up
};

} // namespace gpu_sleep::agent::server
