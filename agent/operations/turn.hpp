// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What every operation begins with: its turn, and the contexts that it works in.

#pragma once

#include "base/error.hpp"
#include "base/guard.hpp"
#include "operations/parts.hpp"
#include "operations/process_status.hpp"
#include "operations/turnstile.hpp"
#include "program_memory/program_memory.hpp"
#include "server/line.hpp"

#include <optional>
#include <shared_mutex>
#include <type_traits>
#include <utility>

namespace gpu_sleep::agent::operations {

/// An operation's turn: the turnstile is left when it is destroyed. Move-only.
class Turn {
public:
    /// Waits for it. Errors: those of Turnstile::enter().
    [[nodiscard]] static Result<Turn> take(Parts& parts, bool is_sleep, Clock::time_point deadline,
                                           const server::ProgressSink& progress);
    Turn(Turn&& other) noexcept : turnstile_(std::exchange(other.turnstile_, nullptr)) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
        if (turnstile_) turnstile_->leave();
    }

private:
    explicit Turn(Turnstile& turnstile) noexcept : turnstile_(&turnstile) {}
    Turnstile* turnstile_;
};

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
    GateSettler(const GateSettler&) = delete;
    GateSettler& operator=(const GateSettler&) = delete;
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

} // namespace gpu_sleep::agent::operations
