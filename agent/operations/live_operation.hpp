// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Moving contents of a program that goes on: to host memory at the same addresses, and back, piece by piece.
// Work is held back only while a piece is compared and mapped; on the way back, while it is copied and
// mapped.

#pragma once

#include "base/error.hpp"
#include "driver/device_session.hpp"
#include "driver/memory.hpp"
#include "model/model.hpp"
#include "model/report.hpp"
#include "operations/joint.hpp"
#include "operations/parts.hpp"
#include "server/request_queue.hpp"
#include "sleep/live_move.hpp"
#include "sleep/live_plan.hpp"

#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

namespace gpu_sleep::agent::operations {

/// One move, in the turn of the operation that makes it. On the operations thread.
class LiveOperation {
public:
    /// What is moved, and notes for the user, are added to `report`. All outlive it.
    LiveOperation(Parts& parts, sleep::Direction direction, const server::ProgressSink& progress,
                  Clock::time_point deadline, bool is_forced, model::Report& report);

    /// Moves what sleep::plan_live() chooses; what is written all the time stays where it is, with a note.
    /// Ends at the first error, which says what has moved and stays moved. A late callback, whose work
    /// nothing holds back, is awaited first, until `waits_until`. Errors: those of plan_live(),
    /// Callbacks::await_idle(), Quiesce::run() and LiveMove; out_of_host_memory, driver_failed.
    [[nodiscard]] Result<void> run(const std::vector<std::string>& tags, Bytes bytes,
                                   Clock::time_point waits_until);
    /// Says what run() would do. Errors: those of plan_live(), and of MemoryKind.
    [[nodiscard]] Result<void> rehearse(const std::vector<std::string>& tags, Bytes bytes);

private:
    [[nodiscard]] Result<std::vector<sleep::LivePart>> plan(const std::vector<std::string>& tags,
                                                            Bytes bytes);
    /// The memory of `device` that contents go to. Errors: those of MemoryKind.
    [[nodiscard]] Result<const driver::MemoryKind*> kind(int device);
    [[nodiscard]] Result<void> move_out(std::span<const sleep::LivePart> parts);
    [[nodiscard]] Result<void> move_in(std::span<const sleep::LivePart> parts);
    /// Tells of `done` bytes of `total`. Errors: no_process, timed_out, cancelled.
    [[nodiscard]] Result<void> check_may_go_on(Bytes done, Bytes total);
    /// The first piece of `rest`, which is shortened by it; null where nothing is left.
    [[nodiscard]] std::unique_ptr<sleep::LiveMove> cut(std::span<const sleep::LivePart>& rest);
    /// Copies `piece`, if there is one, while a thread makes the memory of `next` and lets go of `moved`.
    /// `created`: what became of `next`.
    [[nodiscard]] Result<void> copy_beside(sleep::LiveMove* piece, sleep::LiveMove* next,
                                           sleep::LiveMove* moved, Result<void>& created);
    [[nodiscard]] Result<void> copy(sleep::LiveMove& piece);
    /// Swaps it, and copies what goes to the host again as often as needed. What is not moved then lets go of
    /// the memory that was made for it.
    [[nodiscard]] Result<void> finish(sleep::LiveMove& piece);
    /// Holds work back, until the gate is settled, for a piece on `device`, whose session is ready. Makes way
    /// for contexts that end. Errors: those of Quiesce::run() and session().
    [[nodiscard]] Result<void> hold_work(int device);
    /// Holds work back meanwhile.
    [[nodiscard]] Result<sleep::Verdict> swap(sleep::LiveMove& piece, int round);
    /// Counts host memory: what pieces have `made` of it or left, and `more` that is about to be made.
    [[nodiscard]] Result<void> count_host(Bytes made, Bytes more = 0);
    /// What works on a device, ready for pieces: the same for all of them, but that it makes way for contexts
    /// that end. Errors: those of PrimaryContext::retain() and DeviceSession.
    [[nodiscard]] Result<driver::DeviceSession*> session(int device);
    /// Which may wait for the program's work: outward beforehand, and inward in the first pause.
    [[nodiscard]] Result<void> reserve_fingerprints(driver::DeviceSession& session);
    /// Waits for what sessions have queued, and lets contexts end.
    void leave_contexts() noexcept;
    [[nodiscard]] model::DeviceReport& device(int ordinal);
    void add_bytes(int device, Bytes bytes);
    void add_steps(int device, const model::StepTimes& steps) noexcept;
    /// Notes how much of the devices in use is free. Errors: driver_failed, context_lost.
    [[nodiscard]] Result<void> note_memory(Bytes model::DeviceReport::*free);

    Parts& parts_;
    const sleep::Direction direction_;
    const server::ProgressSink& progress_;
    const Clock::time_point deadline_;
    model::Report& report_;
    model::SleepRequest pause_; ///< what holds work back
    const server::DirectiveSource nobody_;
    Joint alone_;
    std::map<int, driver::MemoryKind> kinds_;
    std::map<int, model::StepClock> clocks_;       ///< of what no session counts
    std::shared_lock<std::shared_mutex> contexts_; ///< as long as there are sessions
    std::map<int, std::unique_ptr<driver::DeviceSession>> sessions_;
    Bytes limit_;                         ///< of the next piece
    Bytes largest_ = sleep::k_most_piece; ///< that any piece may be
    /// Until when the program, which the last pause has held back, is left to its work: for as long. None
    /// where it did not wait, or still does, for what sleeps.
    std::optional<Clock::time_point> works_until_;
    Bytes stayed_ = 0;
    Bytes moved_ = 0;
};

/// A LiveRequest, from the request to the answer. Errors: those of LiveOperation; inhibited.
[[nodiscard]] Result<model::Report> run_live(Parts& parts, const model::LiveRequest& request,
                                             const server::ProgressSink& progress, server::Asker asker);

} // namespace gpu_sleep::agent::operations
