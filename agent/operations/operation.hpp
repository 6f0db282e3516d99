// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Operations, and their common frame: the turn, the contexts that one works in, the gate and the report.

#pragma once

#include "callbacks/callbacks.hpp"
#include "operations/giving_back.hpp"
#include "operations/joint.hpp"
#include "operations/room_making.hpp"
#include "torch/torch_trim.hpp"

namespace gpu_sleep::agent::operations {

/// Keeps contexts from ending, for an operation that has not shut the gate: one that only looks, or only
/// moves what sleeps. For any other the gate holds back calls that end contexts.
[[nodiscard]] std::shared_lock<std::shared_mutex> keep_contexts(bool leaves_gate);

/// Has the agent hear of the process's end before all others: called before the gate stays shut.
using ComeFirst = void (*)() noexcept;

/// What every operation uses. One for the process.
struct Ground {
    ProgramMemory& memory;
    ProcessStatus& status;
    Turnstile& turnstile;
    DeepSleep& deep;
    GivingBack& giving_back;

    /// Makes the gate fit what sleeps. Nothing where the program's calls are not intercepted.
    void settle_gate() const noexcept;
    /// Runs a transaction on the memory, guarded; reports tell meanwhile how all was before.
    template <class Transaction>
    [[nodiscard]] std::invoke_result_t<Transaction> transact(const LockedMemory& locked,
                                                             Transaction&& transaction) const {
        model::Report before;
        status.complete(locked, before);
        status.set_before(std::move(before));
        auto done = guarded(std::forward<Transaction>(transaction));
        status.set_before(std::nullopt);
        return done;
    }
};

/// The part that all operations have in common. Each is run once, on the operations thread.
struct Operation {
    Operation(const Ground& its, const server::ProgressSink& asker, const model::Terms& terms,
              model::Operation kind = model::Operation::status)
        : ground(its), progress(asker), deadline(start + terms.timeout) {
        report.operation = kind;
        report.dry_run = terms.dry_run;
    }

    /// Waits for the turn, which lasts until this is destroyed. Errors: those of Turnstile::enter();
    /// no_process (it is ending).
    [[nodiscard]] Result<void> take_turn(bool is_sleep);
    /// The same, and returns whether the process sleeps deeply. Errors besides: those of DeepSleep::look().
    [[nodiscard]] Result<bool> begin(bool is_sleep);
    /// Joint::wait_ready(), of which those that share memory may know more.
    [[nodiscard]] Result<bool> wait_ready(Joint& joint, std::uint64_t party);
    /// Adds to the report how all stands now, and returns it. A shortage of memory only thins it.
    [[nodiscard]] model::Report reported() noexcept;
    /// Adds a note to the report, unless memory is short.
    template <class... Args>
    void note(fmt::format_string<Args...> text, Args&&... args) noexcept {
        ignoring_errors([&] { report.notes.push_back(fmt::format(text, std::forward<Args>(args)...)); });
    }

    const Clock::time_point start = Clock::now();
    const Ground& ground;
    const server::ProgressSink& progress;
    Clock::time_point deadline;
    ProgramMemory& memory = ground.memory;
    model::Report report;
    struct Leave {
        void operator()(Turnstile* turnstile) const noexcept { turnstile->leave(); }
    };
    std::unique_ptr<Turnstile, Leave> turn;
};

/// Runs the callback, while nothing sleeps or wakes, and reports its reply; in a dry run reports only whether
/// there is one. Called on the operations thread. Errors: those of Turnstile::enter(), DeepSleep::look() and
/// Callbacks::run_named(); refused (it sleeps deeply), no_process (it is ending).
[[nodiscard]] Result<model::Report> call(const Ground& ground, Callbacks& callbacks,
                                         const model::CallRequest& request,
                                         const server::ProgressSink& progress);

/// Gives back all host memory that is retained, at once; in a dry run says how much that is. Called on the
/// operations thread. Errors: those of Turnstile::enter() and DeepSleep::look(); no_process (it is ending).
[[nodiscard]] Result<model::Report> release(const Ground& ground, const model::ReleaseRequest& request,
                                            const server::ProgressSink& progress);

/// What moves contents while the program runs. One for the process.
struct LiveUses {
    Callbacks& callbacks;
    ComeFirst come_first_at_exit;
};

/// Moves contents of a program that goes on, piece by piece: to host memory, at the same addresses, what
/// sleep::plan_live() chooses. Work is held back only while a piece is compared and mapped. What is written
/// all the time stays where it is, with a note. Ends at the first error, which says what has moved and stays
/// moved. Errors: those of plan_live(), Turnstile::enter(), Callbacks::await_idle(), Quiesce and LiveMove;
/// inhibited, out_of_host_memory, driver_failed.
[[nodiscard]] Result<model::Report> move_out(const Ground& ground, const LiveUses& its,
                                             const Inhibitors& inhibitors, const model::LiveRequest& request,
                                             const server::Asking& asking);
/// The way back, as a part of the wake by `request`, to whose report it adds what it does. Work is held back
/// while a piece is copied and mapped. Errors: as those of move_out().
[[nodiscard]] Result<void> move_back(Operation& wake, const LiveUses& its, const model::WakeRequest& request);

/// What a sleep uses. One for the process.
struct SleepUses {
    Callbacks& callbacks;
    IdleWatch& idle;
    const Inhibitors& inhibitors;
    Preparation& preparation;
    torch::TorchTrim& torch_trim; ///< used by one operation at a time
    ComeFirst come_first_at_exit;
};

/// One sleep, on the operations thread. Errors: those of Turnstile::enter(), Callbacks::run_before_sleep(),
/// Quiesce, Transactions::sleep() and Joint::wait_ready(): all is awake that was, but for what could not be
/// mapped again; inhibited, unseen_library, io_failed, no_process (it is ending), cancelled.
///
/// Where it is `only_if_idle`, of which `request` is a part, a process that is not idle as asked, or works
/// again before the point of no return, is reported unchanged, with a note that says why.
[[nodiscard]] Result<model::Report> sleep(const Ground& ground, const SleepUses& its,
                                          const model::SleepRequest& request,
                                          const model::IdleSleepRequest* only_if_idle,
                                          const server::Asking& asking);

/// What a wake uses. One for the process.
struct WakeUses {
    Callbacks& callbacks;
    IdleWatch& idle;
    GpuLines& lines;
    const LiveUses& live;
};

/// One wake, tried once, on the operations thread. Errors: those of Turnstile::enter(), Gate::close(),
/// Transactions::check_free_memory() and Transactions::wake(): all that slept still does; of Woken::left:
/// some of it; those of DeepSleep::find_room(), DeepSleep::end(), GpuLines::wait_for_room() and
/// Joint::wait_ready(); no_process (it is ending); invalid_argument (to other GPUs, and not from a deep
/// sleep).
[[nodiscard]] Result<model::Report> wake(const Ground& ground, const WakeUses& its,
                                         const model::WakeRequest& request, const server::Asking& asking);

} // namespace gpu_sleep::agent::operations
