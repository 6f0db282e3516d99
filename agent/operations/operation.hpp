// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The common frame of operations: the turn, the contexts that one works in, the gate and the report. The two
// operations that need little more are here, too.

#pragma once

#include "callbacks/callbacks.hpp"
#include "operations/giving_back.hpp"
#include "operations/joint.hpp"

namespace gpu_sleep::agent::operations {

/// Keeps contexts from ending, for an operation that has not shut the gate: one that only looks, or only
/// moves what sleeps. For any other the gate holds back calls that end contexts.
[[nodiscard]] std::shared_lock<std::shared_mutex> keep_contexts(bool leaves_gate);

/// The services that every operation uses. One for the process.
struct Ground {
    ProgramMemory& memory;
    ProcessStatus& status;
    Turnstile& turnstile;
    DeepSleep& deep;
    GivingBack& giving_back;
    IdleWatch& idle;
    Callbacks& callbacks;
    /// Has the agent hear of the process's end before all others: called before the gate stays shut.
    void (*come_first_at_exit)() noexcept;

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
    /// Adds to the report how all stands now, and returns it. A shortage of memory only thins it.
    [[nodiscard]] model::Report reported() noexcept;

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
[[nodiscard]] Result<model::Report> call(const Ground& ground, const model::CallRequest& request,
                                         const server::ProgressSink& progress);

/// Gives back all host memory that is retained, at once; in a dry run says how much that is. Called on the
/// operations thread. Errors: those of Turnstile::enter() and DeepSleep::look(); no_process (it is ending).
[[nodiscard]] Result<model::Report> release(const Ground& ground, const model::ReleaseRequest& request,
                                            const server::ProgressSink& progress);

} // namespace gpu_sleep::agent::operations
