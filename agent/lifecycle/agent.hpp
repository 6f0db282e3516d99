// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The agent of a process: its operations and its life, from the first use of CUDA through fork
// to exit.

#pragma once

#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "lifecycle/idle_timer.hpp"
#include "lifecycle/stop_watch.hpp"
#include "lifecycle/touch_waker.hpp"
#include "lifecycle/transitions.hpp"
#include "operations/operations.hpp"
#include "program_memory/program_memory.hpp"
#include "server/server.hpp"

namespace gpu_sleep::agent {

/// One for each process; a child of fork() starts without. Thread-safe.
/// lock_order.hpp has the order of its mutexes. That of the C library's list of exit handlers (agent.cpp) is
/// taken under start_mutex_ and the turnstile alone, and before those of the C library that fork() takes.
class Agent final : public server::Operations {
public:
    /// Makes it on first use, without CUDA, threads or files. Never destroyed.
    static Agent& instance();
    /// The agent if there is one.
    static Agent* existing() noexcept;

    /// Opens the driver, initialises CUDA, starts the threads and the socket. Cheap once it is done.
    /// Errors: no_driver, driver_failed, internal. A socket that cannot be made is logged and does without.
    [[nodiscard]] Result<void> start();

    /// See the functions of the same purpose in gpu_sleep.h for all of these.
    [[nodiscard]] Result<driver::DeviceAddress> allocate(int device, std::string_view tag, Bytes bytes);
    [[nodiscard]] Result<void> free(driver::DeviceAddress address);
    [[nodiscard]] Result<void> allow_access(driver::DeviceAddress address, int device);
    void set_name(std::string_view name) {
        server_.show_renamed();
        operations_.status.note(&operations::ProcessStatus::Notes::name, std::string(name));
    }

    [[nodiscard]] ProgramMemory& memory() noexcept { return memory_; }
    [[nodiscard]] Callbacks& callbacks() noexcept { return operations_.callbacks; }
    [[nodiscard]] operations::Turnstile& turnstile() noexcept { return operations_.turnstile; }
    [[nodiscard]] operations::Inhibitors& inhibitors() noexcept { return operations_.inhibitors; }

    /// Runs an operation on the operations thread and waits for it. Errors: refused when called from a
    /// callback.
    [[nodiscard]] server::Outcome run_here(server::Operation operation);

    /// Has host memory made ready for the next sleep, in the background.
    void prepare() {
        operations_.preparation.is_urgent = true;
        if (memory_.is_started()) memory_.tidy_within(Milliseconds(0));
    }

    // server::Operations, called on the server's threads.
    [[nodiscard]] model::Report status() override;
    [[nodiscard]] model::State state() noexcept override { return operations_.status.state(); }
    [[nodiscard]] Result<server::SharedMemory> share(const model::SharedMemoryRequest& request,
                                                     pid_t asker) override;
    [[nodiscard]] server::Outcome run(const server::Operation& operation,
                                      const server::Asking& asking) override;
    [[nodiscard]] const char* work_thread_name() noexcept override;
    [[nodiscard]] Milliseconds pause_between_tries() const noexcept override;
    void ended(const server::Job& job, const server::Outcome& outcome) noexcept override;
    [[nodiscard]] std::uint32_t place() const noexcept override { return operations_.room.place(); }
    void leave_line() noexcept override { operations_.room.leave(); }
    void inhibit(const model::InhibitRequest& request) noexcept override;
    void set_timer(const model::TimerRequest& request) override { idle_timer_.set(request); }
    [[nodiscard]] Milliseconds look() noexcept override;
    [[nodiscard]] bool tidy() override;

private:
    /// For an operation that may have come before start() was over: waits until it is. Errors: refused.
    [[nodiscard]] Result<void> await_start();

    Agent();
    /// Makes handle_exit the handler that runs first when the process ends: before the destructors of objects
    /// made so far, which may use CUDA, or wait for a thread that waits at the gate.
    static void come_first_at_exit() noexcept;
    static void handle_exit(void*) noexcept;
    static void handle_fork_in_child() noexcept;

    /// `error` as it is told: whatever fails once the process has begun to end, that is why.
    [[nodiscard]] Error as_it_ends(Error error) const;
    /// Has the process sleep where its own timer says so.
    void sleep_if_due();
    /// If the environment wants it.
    [[nodiscard]] Result<void> watch_for_stops();
    /// Takes over the host budget of this user's processes from a request, within the environment's limit.
    void adopt_host_budget(Bytes most);

    Mutex start_mutex_ GPU_SLEEP_ACQUIRED_BEFORE(lock_order::starting); ///< one start at a time
    std::atomic<pid_t> pid_{0};                                         ///< of the process that started it
    ProgramMemory memory_;
    operations::Operations operations_;
    lifecycle::Transitions transitions_;
    const std::string journal_; ///< where it listens; empty: nothing is written
    server::Server server_;
    lifecycle::StopWatch stop_watch_;
    lifecycle::IdleTimer idle_timer_;
    lifecycle::TouchWaker touch_waker_;
    const std::optional<Bytes> host_budget_; ///< of the environment
};

} // namespace gpu_sleep::agent
