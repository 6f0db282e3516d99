// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Moving contents of a program that goes on: to host memory at the same addresses, and back, piece by piece.
// Work is held back only while a piece is compared and mapped; on the way back, while it is copied and
// mapped.

#pragma once

#include "operations/operation.hpp"

namespace gpu_sleep::agent::operations {

/// How whoever asked follows a move, and how long they give it.
struct LiveControl {
    const server::ProgressSink& progress;
    Clock::time_point deadline;
    /// Until when a late callback is awaited first, whose work nothing holds back.
    Clock::time_point waits_until;
};

/// Moves to host memory what sleep::plan_live() chooses; what is written all the time stays where it is, with
/// a note. Ends at the first error, which says what has moved and stays moved. Errors: those of plan_live(),
/// Turnstile::enter(), Callbacks::await_idle(), Quiesce and LiveMove; inhibited, out_of_host_memory,
/// driver_failed.
[[nodiscard]] Result<model::Report> move_out(const Ground& ground, const Inhibitors& inhibitors,
                                             const model::LiveRequest& request,
                                             const server::ProgressSink& progress, server::Asker asker);
/// The way back, in the turn of the wake by `request`, to whose report it adds what it does. Errors: as
/// those of move_out().
[[nodiscard]] Result<void> move_back(const Ground& ground, const model::WakeRequest& request,
                                     const LiveControl& control, model::Report& report);

} // namespace gpu_sleep::agent::operations
