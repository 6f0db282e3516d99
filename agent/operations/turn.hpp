// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What every operation begins with: its turn, and the contexts that it works in.

#pragma once

#include "base/result.hpp"
#include "operations/parts.hpp"
#include "operations/turnstile.hpp"
#include "server/line.hpp"

#include <shared_mutex>
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

/// Why nothing is done any more.
[[nodiscard]] Error process_is_ending();

} // namespace gpu_sleep::agent::operations
