// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The steps of a wake.

#include "operations/wake_operation.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "common/interception.hpp"
#include "driver/context.hpp"
#include "gate/gate.hpp"
#include "operations/giving_back.hpp"
#include "operations/live_operation.hpp"
#include "operations/quiesce.hpp"
#include "operations/turn.hpp"

#include <fmt/ranges.h>

namespace gpu_sleep::agent::operations {

using model::Report;

namespace {

/// Gives work that waits, and that a checked gate lets through now, the time to pass.
void let_work_through() {
    constexpr Milliseconds k_window{2};
    const auto& gate = gate::Gate::instance();
    if (gate.is_checked() && gate.waiting().held_now > 0) std::this_thread::sleep_for(k_window);
}

} // namespace

WakeOperation::WakeOperation(Parts& parts, const model::WakeRequest& request,
                             const server::ProgressSink& progress, Joint& joint, Clock::time_point since)
    : parts_(parts), request_(request), progress_(progress), joint_(joint),
      // What was asked to bound all bounds the wait for GPU memory, too.
      deadline_(request.bounds_all ? since + request.timeout + request.wait : start_ + request.timeout) {
    report_.operation = model::Operation::wake;
    report_.dry_run = request.dry_run;
}

Result<void> WakeOperation::check_free_memory(const model::WakeRequest& part) {
    if (part.dry_run) return {};
    const auto contexts = keep_contexts(true);
    return parts_.memory.with_lock([&](LockedMemory& locked) {
        return guarded([&] { return locked.engine().check_free_memory(part); });
    });
}

Result<sleep::Woken> WakeOperation::attempt(const model::WakeRequest& part, Report& report) {
    const server::ProgressSink progress = [&](model::Progress now) {
        if (!part.order.empty()) now.tag = part.order.front();
        return progress_(now);
    };
    // Contexts must not end while memory comes back, and what passes a checked gate must not see half of it.
    if (!part.dry_run) GPU_SLEEP_TRY(shut_gate_to_wake(progress, deadline_));
    const auto contexts = keep_contexts(part.dry_run);
    sleep::Control control{progress, part.bounds_all ? deadline_ : Clock::time_point::max()};
    control.wait_for_others = [this] {
        room_ = {}; // all is mapped, and another of those that go together may wait for it
        return joint_.wait_ready();
    };
    return parts_.memory.with_lock([&](LockedMemory& locked) {
        const auto in_place = locked.ledger().in_place();
        auto woken = transact(parts_.status, locked, [&] { return locked.wake(part, control, report); });
        from_place_ += in_place - locked.ledger().in_place();
        return woken;
    });
}

void WakeOperation::run_callbacks(sleep::Woken& woken, Report& report) {
    if (!report.changed || woken.tags.empty()) return; // the end of a pause is not told
    const log::Step step("callbacks after the wake");
    const auto called = Clock::now();
    if (intercepts()) parts_.memory.let_allocate();
    *event_ = {0, std::move(woken.tags), std::move(woken.dropped_tags), parts_.deep.was_deep()};
    ignoring_errors([&] { jobs_ = parts_.callbacks.draft_after_wake(); }); // as they are by now
    report.notes = parts_.callbacks.run_after_wake(jobs_, event_, called + request_.timeout);
    // After a refill that may have failed, what was dropped counts as not refilled, whatever was said.
    if (!report.notes.empty()) parts_.memory.require_refill(event_->dropped_tags);
    report.times.callbacks = seconds_since(called);
}

void WakeOperation::add(Report&& part) {
    report_.changed |= part.changed;
    if (report_.refusal.empty()) report_.refusal = std::move(part.refusal);
    if (!report_.refusal_code) report_.refusal_code = part.refusal_code;
    report_.times.callbacks += part.times.callbacks;
    report_.times.drain += part.times.drain;
    report_.times.transfer += part.times.transfer;
    report_.times.release += part.times.release;
    ignoring_errors([&] { // a shortage only thins it
        report_.notes.insert(report_.notes.end(), part.notes.begin(), part.notes.end());
        for (const auto& device : part.devices) {
            const auto same = std::find_if(report_.devices.begin(), report_.devices.end(),
                                           [&](const auto& each) { return each.device == device.device; });
            if (same == report_.devices.end()) {
                report_.devices.push_back(device);
                continue;
            }
            same->released += device.released;
            same->kept += device.kept;
            same->dropped += device.dropped;
            same->free_after = device.free_after;
            for (std::size_t i = 0; i < device.steps.size(); ++i) same->steps[i] += device.steps[i];
        }
    });
}

void WakeOperation::note_speed() {
    if (from_place_ != 0) return; // the time was not all for copies
    Bytes bytes = 0;
    for (const auto& device : report_.devices) bytes += device.kept;
    if (report_.changed && bytes > 0)
        parts_.status.set_woken(bytes, seconds_since(start_) - report_.times.callbacks);
}

void WakeOperation::complete_report() {
    parts_.memory.with_lock([&](const LockedMemory& locked) {
        ignoring_errors([&] { // a shortage only thins it
            for (const auto& file : locked.contents().files_left_behind())
                report_.notes.push_back(
                    fmt::format("{} is empty but stays: the process can no longer write to its directory; "
                                "gpu-snapshot clean, run by a user who may, removes it",
                                file.string()));
            if (request_.dry_run && locked.is_paused() && locked.state() != model::State::paused)
                report_.notes.emplace_back("its pause would end as well");
            parts_.status.complete(locked, report_);
        });
    });
    report_.times.total = seconds_since(start_);
}

Result<void> WakeOperation::wake(const model::WakeRequest& part) {
    GPU_SLEEP_TRY(check_free_memory(part));
    GateSettler settler(parts_.memory, parts_.status);
    event_ = std::make_shared<Event>();
    jobs_ = parts_.callbacks.draft_after_wake();
    Report report;
    auto woken = attempt(part, report);
    room_ = {}; // callbacks take their time
    if (!woken) return std::move(woken).error();
    run_callbacks(*woken, report);
    if (report.changed) {
        parts_.idle.note_wake();
        parts_.status.note_wake();
    }
    settler.settle();
    const bool has_changed = report.changed;
    add(std::move(report));
    if (woken->left) return *std::move(woken->left);
    if (has_changed)
        ignoring_errors([&] { woken_.insert(woken_.end(), part.order.begin(), part.order.end()); });
    return {};
}

Result<Report> WakeOperation::rehearse_deep() {
    auto needs = parts_.deep.needs(request_);
    if (!needs) return std::move(needs).error();
    report_.devices = *std::move(needs);
    complete_report();
    report_.notes.emplace_back("the driver brings it back to the GPU first, for which there must be room");
    note_short_devices(request_, report_);
    return std::move(report_);
}

Result<void> WakeOperation::end_deep() {
    const auto find_room = [this](const client::BytesByGpu& of_others) {
        return parts_.deep.find_room(request_, of_others);
    };
    // The first look takes 20 ms and more, for which nobody else is kept from counting. What it finds missing
    // may be there once others are done.
    if (const auto found = find_room({}); !found && found.error().code != ErrorCode::out_of_device_memory) {
        parts_.deep.end_looks();
        return found.error();
    }
    std::optional<log::Step> step("wait for GPU memory");
    auto room = parts_.lines.wait_for_room(parts_.deep.gpus(request_), find_room, deadline_, [this] {
        return progress_({model::Progress::Phase::waiting, 0, 0});
    });
    step.reset();
    parts_.deep.end_looks();
    if (!room) return std::move(room).error();
    room_ = *std::move(room);
    GPU_SLEEP_TRY(sleep::telling_of_call(progress_, [this] { return parts_.deep.end(request_); }));
    settle_gate(parts_.memory, parts_.status); // where nothing sleeps but the driver's part, it opens here
    return {};
}

bool WakeOperation::is_for_others(bool is_deep) const {
    if (!request_.ignore_unknown_tags || request_.tags.empty()) return false;
    return parts_.memory.with_lock([&](const LockedMemory& locked) {
        return (is_deep || !locked.is_paused()) &&
               std::none_of(request_.tags.begin(), request_.tags.end(), [&](const std::string& name) {
                   return locked.ledger().find_tag(name).has_value();
               });
    });
}

Result<Report> WakeOperation::run() {
    if (joint_.is_joint() && !request_.order.empty())
        return make_error(ErrorCode::invalid_argument,
                          "processes that wake together cannot wake in an order of tags");
    GPU_SLEEP_TRY(joint_.announce());
    const auto begun = begin_operation(parts_, false, deadline_, progress_);
    if (!begun) return begun.error();
    const bool is_deep = begun->is_deep;
    if (!is_deep && !request_.gpus.empty() && !parts_.deep.has_moved(request_.gpus)) {
        settle_gate(parts_.memory, parts_.status); // somebody else may have brought it back
        return make_error(ErrorCode::invalid_argument,
                          "it does not sleep deeply, so what it has on a GPU cannot move: put it to sleep "
                          "with gpu-sleep --deep first");
    }
    if (is_for_others(is_deep)) {
        complete_report();
        return std::move(report_);
    }
    if (is_deep && request_.dry_run) return rehearse_deep();
    if (is_deep) GPU_SLEEP_TRY(end_deep());
    report_.changed = is_deep;
    auto done = wake_all();
    if (!done && !request_.gpus.empty())
        done.error().message += "; it is on the other GPU already: gpu-wake without --gpu continues there";
    return done;
}

Result<Report> WakeOperation::wake_all() {
    const driver::RelaxedCaptureMode relaxed(parts_.memory.api());
    const auto parts = parts_.memory.with_lock([&](const LockedMemory& locked) {
        return guarded([&] { return locked.engine().parts_of(request_); });
    });
    if (!parts) return parts.error();
    for (const auto& part : *parts) {
        if (!woken_.empty()) let_work_through();
        auto done = wake(part);
        if (done) continue;
        for (const auto& note : report_.notes) log::warning("{}", note); // the answer has no place for them
        auto error = std::move(done).error();
        ignoring_errors([&] {
            if (!woken_.empty()) error.message += fmt::format("; woken before: {}", fmt::join(woken_, ", "));
        });
        return error;
    }
    note_speed();
    const bool has_woken = report_.changed;
    if (auto back = bring_back_live(); !back) {
        if (!has_woken) return std::move(back).error();
        ignoring_errors([&] {
            report_.notes.push_back(
                fmt::format("memory that runs from host memory stays there: {}", back.error().message));
        });
    }
    // Whoever retains nothing expects host memory back when its own wake returns, not seconds later.
    if (request_.live_bytes == 0 && parts_.memory.with_lock([](const LockedMemory& locked) {
            return locked.contents().room_beside_retained(model::k_all_bytes) == 0;
        }))
        give_back_retired(parts_);
    complete_report();
    return std::move(report_);
}

Result<void> WakeOperation::bring_back_live() {
    if (request_.live_bytes == 0) return {};
    const auto deadline = request_.bounds_all ? deadline_ : Clock::time_point::max();
    LiveOperation move(parts_, sleep::Direction::to_device, progress_, deadline, false, report_);
    return request_.dry_run ? move.rehearse(request_.tags, request_.live_bytes)
                            : move.run(request_.tags, request_.live_bytes, deadline_);
}

Result<Report> wake_alone(Parts& parts, const model::WakeRequest& request,
                          const server::ProgressSink& progress, Clock::time_point since) {
    const server::DirectiveSource nobody;
    Joint alone(false, progress, nobody);
    return WakeOperation(parts, request, progress, alone, since).run();
}

} // namespace gpu_sleep::agent::operations
