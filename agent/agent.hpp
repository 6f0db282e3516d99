// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The agent of a process: its operations and its life, from the first use of CUDA through fork
// to exit.

#pragma once

#include "base/thread_safety.hpp"
#include "callbacks.hpp"
#include "gate/gate.hpp"
#include "lock_order.hpp"
#include "program_memory/program_memory.hpp"
#include "program_memory/retired_contents.hpp"
#include "server/server.hpp"
#include "torch_trim.hpp"
#include "turnstile.hpp"

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>

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
    void set_name(std::string_view name);

    [[nodiscard]] ProgramMemory& memory() noexcept { return memory_; }
    [[nodiscard]] Callbacks& callbacks() noexcept { return callbacks_; }
    [[nodiscard]] Turnstile& turnstile() noexcept { return turnstile_; }

    /// Runs an operation on the operations thread and waits for it. Errors: refused when called from a
    /// callback.
    [[nodiscard]] server::Outcome run_here(server::Operation operation);

    // server::Operations, called on the server's threads.
    [[nodiscard]] model::Report status() override;
    [[nodiscard]] model::State state() noexcept override;
    [[nodiscard]] Result<server::SharedMemory> share(const model::ShareRequest& request) override;
    [[nodiscard]] server::Outcome run(const server::Operation& operation,
                                      const server::ProgressSink& progress, bool is_own,
                                      Clock::time_point since) override;
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
    /// Closes retired files, whose room on the disk is free then. Returns whether there were any.
    [[nodiscard]] bool give_back_files();
    /// Gives back all that is retired or wasted, at once. Returns whether there was any.
    [[nodiscard]] bool give_back_all();
    [[nodiscard]] Result<model::Report> sleep(const model::SleepRequest& request,
                                              const server::ProgressSink& progress, bool is_own);
    /// `since`: when it was asked for.
    [[nodiscard]] Result<model::Report> wake(const model::WakeRequest& request,
                                             const server::ProgressSink& progress, Clock::time_point since);
    /// Holds every touch, and waits for those that a gate of a process in part asleep let through.
    [[nodiscard]] static Result<void> shut_gate_to_wake(const server::ProgressSink& progress,
                                                        Clock::time_point deadline);
    /// Whether a wake could be begun now. Errors: those of Engine::check_room().
    [[nodiscard]] Result<void> check_room(const model::WakeRequest& request);
    [[nodiscard]] Result<sleep::Woken> try_to_wake(const model::WakeRequest& request,
                                                   const server::ProgressSink& progress,
                                                   Clock::time_point deadline, model::Report& report);
    /// What a sleep would do: what callbacks are told of it, with no tags where all of it sleeps already.
    struct Preview {
        Event event;
        std::vector<std::string> still_kept; ///< as SleepPlan has it
        bool is_empty = true;
    };
    [[nodiscard]] Result<Preview> preview(const model::SleepRequest& request);
    /// Refuses a sleep, unless forced, while a library is loaded whose work no gate holds, or once the
    /// program has called an entry point of the driver that this build does not know; notes it otherwise.
    /// Only where all the program's work is caught: a program that hands its memory over promises by itself
    /// to leave it alone. Errors: unseen_library, io_failed.
    [[nodiscard]] static Result<void> check_unseen(const model::SleepRequest& request, model::Report& report);
    /// Asks the callbacks, shuts the gate and waits for the device. False: there is nothing to do, and
    /// nothing was done.
    [[nodiscard]] Result<bool> quiesce(const model::SleepRequest& request,
                                       const server::ProgressSink& progress, Clock::time_point deadline,
                                       Callbacks::Jobs& owed, model::Report& report);
    /// Does what `request` says of all that sleeps, whichever request put it to sleep. `is_own`: the program
    /// made it.
    void follow(const model::SleepRequest& request, bool adds_to_sleep, bool is_own, model::Report& report);
    /// Waits for the work that may use the allocation. Errors: those of driver::drain() but
    /// context_lost.
    [[nodiscard]] Result<void> prepare_free(driver::DeviceAddress address);
    /// Errors: capture_in_progress, if a capture waits for what sleeps already, and so for no sleep's end.
    [[nodiscard]] Result<void> check_captures_may_end();
    /// Lets captures end, closes the gate and waits for the device.
    [[nodiscard]] Result<void> shut_gate(Clock::time_point deadline, const std::function<bool()>& keep_going);
    [[nodiscard]] Result<void> drain(Clock::time_point deadline, const std::function<bool()>& keep_going);
    /// Makes the gate fit what sleeps now.
    void settle_gate() noexcept;
    /// The same while after-wake callbacks run.
    void let_take() noexcept;
    class GateSettler;
    [[nodiscard]] static std::function<bool()> coaxing(std::function<bool()> keep_going, bool& has_released);
    void wake_on_touch();
    /// Remembers why the last wake for a touch failed; empty: it did not.
    void set_touch_trouble(std::string_view trouble);
    /// Says so in `report`, while touches wait for another try.
    void note_touch_trouble(model::Report& report);
    /// What takes memory comes last.
    void complete(const LockedMemory& locked, model::Report& report);
    /// Runs a transaction, guarded; status() tells meanwhile how all was before.
    template <class Transaction>
    [[nodiscard]] std::invoke_result_t<Transaction> transact(const LockedMemory& locked,
                                                             Transaction&& transaction);
    /// What `use` says of the memory; or, while a transaction moves contents for a long time, what `before`
    /// says of how the process was when it began.
    template <class Use, class Before>
    [[nodiscard]] auto look(Use&& use, Before&& before);

    Mutex start_mutex_ GPU_SLEEP_ACQUIRED_BEFORE(lock_order::starting); ///< one start at a time
    std::atomic<pid_t> pid_{0};                                         ///< of the process that started it
    ProgramMemory memory_;
    RetiredContents retired_{memory_};

    Mutex before_mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::optional<model::Report> before_
        GPU_SLEEP_GUARDED_BY(before_mutex_); ///< how the process was when the transaction under way began

    Mutex name_mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::string name_ GPU_SLEEP_GUARDED_BY(name_mutex_);

    Turnstile turnstile_;
    Callbacks callbacks_;
    TorchTrim torch_trim_; ///< used by one operation at a time
    server::Server server_;
    std::atomic<bool> wake_wanted_{false}; ///< by a touch, and not yet tried
    Mutex touch_mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::string touch_trouble_
        GPU_SLEEP_GUARDED_BY(touch_mutex_); ///< why the last wake for a touch failed; empty once awake
    std::atomic<bool> exiting_{false};      ///< the process is ending: no more calls of CUDA
};

} // namespace gpu_sleep::agent
