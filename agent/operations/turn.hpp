// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What every operation begins with, its turn and the contexts that it works in; and the two operations that
// need little more: running a callback by its name, and giving back what is retained, because somebody asks
// for it.

#pragma once

#include "base/error.hpp"
#include "base/guard.hpp"
#include "model/model.hpp"
#include "operations/parts.hpp"
#include "operations/process_status.hpp"
#include "operations/turnstile.hpp"
#include "program_memory/program_memory.hpp"
#include "server/request_queue.hpp"

#include <memory>
#include <optional>
#include <shared_mutex>
#include <type_traits>
#include <utility>

namespace gpu_sleep::agent::operations {

struct LeaveTurnstile {
    void operator()(Turnstile* turnstile) const noexcept { turnstile->leave(); }
};
/// An operation's turn: the turnstile is left when it is destroyed.
using Turn = std::unique_ptr<Turnstile, LeaveTurnstile>;
/// Waits for it. Errors: those of Turnstile::enter().
[[nodiscard]] Result<Turn> take_turn(Parts& parts, bool is_sleep, Clock::time_point deadline,
                                     const server::ProgressSink& progress);

/// What an operation has found when its turn came.
struct Begun {
    Turn turn;
    bool is_deep = false; ///< the process sleeps deeply
};
/// Waits for the turn, and looks. Errors: those of take_turn() and DeepSleep::look(); no_process (it is
/// ending).
[[nodiscard]] Result<Begun> begin_operation(Parts& parts, bool is_sleep, Clock::time_point deadline,
                                            const server::ProgressSink& progress);

/// Says in the report of what began at `start` how all stands now. A shortage of memory only thins it.
void complete_report(Parts& parts, model::Report& report, Clock::time_point start) noexcept;

/// Keeps contexts from ending, for an operation that has not shut the gate: one that only looks, or only
/// moves what sleeps. For any other the gate holds back calls that end contexts.
[[nodiscard]] std::shared_lock<std::shared_mutex> keep_contexts(bool leaves_gate);

/// Runs a transaction on the memory, guarded; reports tell meanwhile how all was before.
template <class Transaction>
[[nodiscard]] std::invoke_result_t<Transaction> transact(ProcessStatus& status, const LockedMemory& locked,
                                                         Transaction&& transaction) {
    model::Report before;
    status.complete(locked, before);
    status.set_before(std::move(before));
    auto done = guarded(std::forward<Transaction>(transaction));
    status.set_before(std::nullopt);
    return done;
}

/// Why nothing is done any more.
[[nodiscard]] Error process_is_ending();

/// Makes the gate fit what sleeps. Nothing where the program's calls are not intercepted.
void settle_gate(ProgramMemory& memory, ProcessStatus& status) noexcept;

/// Does so once an operation is over: by settle(), or else when destroyed, however the operation ends.
class GateSettler {
public:
    GateSettler(ProgramMemory& memory, ProcessStatus& status) noexcept : memory_(memory), status_(status) {}
    GateSettler& operator=(GateSettler&&) = delete;
    ~GateSettler() {
        if (!is_settled_) settle();
    }

    void settle() noexcept {
        is_settled_ = true;
        settle_gate(memory_, status_);
    }

private:
    ProgramMemory& memory_;
    ProcessStatus& status_;
    bool is_settled_ = false;
};

/// Runs the callback, while nothing sleeps or wakes, and reports its reply; in a dry run reports only whether
/// there is one. Called on the operations thread. Errors: those of Turnstile::enter(), DeepSleep::look() and
/// Callbacks::run_named(); refused (it sleeps deeply), no_process (it is ending).
[[nodiscard]] Result<model::Report> call(Parts& parts, const model::CallRequest& request,
                                         const server::ProgressSink& progress);

/// Gives back all host memory that is retained, at once; in a dry run says how much that is. Called on the
/// operations thread. Errors: those of Turnstile::enter() and DeepSleep::look(); no_process (it is ending).
[[nodiscard]] Result<model::Report> release(Parts& parts, const model::ReleaseRequest& request,
                                            const server::ProgressSink& progress);

} // namespace gpu_sleep::agent::operations
