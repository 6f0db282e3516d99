// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The steps of a wake.

#include "operations/wake_operation.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "common/interception.hpp"
#include "driver/context.hpp"
#include "operations/gate_settler.hpp"
#include "operations/quiesce.hpp"
#include "operations/turn.hpp"

#include <utility>

namespace gpu_sleep::agent::operations {

using model::Report;

WakeOperation::WakeOperation(Parts& parts, const model::WakeRequest& request,
                             const server::ProgressSink& progress, Clock::time_point since)
    : parts_(parts), request_(request), progress_(progress),
      // What was asked to bound all bounds the wait for GPU memory, too.
      deadline_(request.bounds_all ? since + request.timeout + request.wait : start_ + request.timeout) {
    report_.operation = model::Operation::wake;
    report_.dry_run = request.dry_run;
}

Result<void> WakeOperation::check_free_memory() {
    if (request_.dry_run) return {};
    const auto contexts = keep_contexts(true);
    return parts_.memory.with_lock(
        [&](LockedMemory& locked) { return guarded([&] { return locked.check_free_memory(request_); }); });
}

Result<sleep::Woken> WakeOperation::attempt() {
    // Contexts must not end while memory comes back, and what passes a checked gate must not see half of it.
    if (!request_.dry_run) GPU_SLEEP_TRY(shut_gate_to_wake(progress_, deadline_));
    const auto contexts = keep_contexts(request_.dry_run);
    const sleep::Control control{progress_, request_.bounds_all ? deadline_ : Clock::time_point::max()};
    return parts_.memory.with_lock([&](LockedMemory& locked) {
        return parts_.status.transact(locked, [&] { return locked.wake(request_, control, report_); });
    });
}

void WakeOperation::run_callbacks(sleep::Woken& woken) {
    if (!report_.changed) return;
    const auto called = Clock::now();
    if (intercepts()) parts_.memory.let_allocate();
    *event_ = {0, std::move(woken.tags), std::move(woken.dropped_tags)};
    ignoring_errors([&] { jobs_ = parts_.callbacks.draft_after_wake(); }); // as they are by now
    report_.notes = parts_.callbacks.run_after_wake(jobs_, event_, called + request_.timeout);
    // After a refill that may have failed, what was dropped counts as not refilled, whatever was said.
    if (!report_.notes.empty()) parts_.memory.require_refill(event_->dropped_tags);
    report_.times.callbacks = seconds_since(called);
}

void WakeOperation::complete_report() {
    parts_.memory.with_lock([&](const LockedMemory& locked) {
        ignoring_errors([&] { // a shortage only thins it
            for (const auto& file : locked.files_out_of_reach())
                report_.notes.push_back(
                    fmt::format("{} stays, and is emptied: the process may not change its directory "
                                "any more, and gpu-snapshot ls, by one who may, removes it",
                                file.string()));
            parts_.status.complete(locked, report_);
        });
    });
    report_.times.total = seconds_since(start_);
}

Result<Report> WakeOperation::run() {
    const auto turn = Turn::take(parts_, false, deadline_, progress_);
    if (!turn) return turn.error();
    const driver::RelaxedCaptureMode relaxed(parts_.memory.api());
    if (parts_.memory.is_ending()) return process_is_ending();
    GPU_SLEEP_TRY(check_free_memory());
    GateSettler settler(parts_.memory, parts_.status);
    event_ = std::make_shared<Event>();
    jobs_ = parts_.callbacks.draft_after_wake();
    auto woken = attempt();
    if (!woken) return std::move(woken).error();
    run_callbacks(*woken);
    settler.settle();
    if (woken->left) {
        for (const auto& note : report_.notes) log::warning("{}", note); // the answer has no place for them
        return *std::move(woken->left);
    }
    complete_report();
    return std::move(report_);
}

} // namespace gpu_sleep::agent::operations
