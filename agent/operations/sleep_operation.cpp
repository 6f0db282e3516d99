// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The steps of a sleep, and what is tried when host memory or disk space is short.

#include "operations/sleep_operation.hpp"

#include "base/guard.hpp"
#include "client/room_plan.hpp"
#include "common/interception.hpp"
#include "driver/context.hpp"
#include "gate/gate.hpp"
#include "operations/quiesce.hpp"
#include "sleep/transactions.hpp"

namespace gpu_sleep::agent::operations {

using model::Report;

namespace {

/// For calls of the driver that are under way when it is to be out of reach: they touch nothing, and are
/// short.
constexpr Milliseconds k_least_time_to_hold{5'000};

bool has_moved(const Report& report) noexcept {
    return !report.dry_run && std::any_of(report.devices.begin(), report.devices.end(),
                                          [](const auto& device) { return device.relocated > 0; });
}

bool is_of_driver(ErrorCode code) noexcept {
    return code == ErrorCode::driver_failed || code == ErrorCode::context_lost ||
           code == ErrorCode::out_of_device_memory;
}

/// Reports that nothing was put to sleep, and why.
Report unchanged(Parts& parts, const model::SleepRequest& request, std::string why, Clock::time_point start) {
    Report report;
    report.operation = model::Operation::sleep;
    report.level = request.level;
    report.dry_run = request.dry_run;
    complete_report(parts, report, start);
    refuse(report, std::move(why));
    return report;
}

} // namespace

/// Whether a process is idle as a sleep asks for that is only for what is idle, and stays so. Used on the
/// operations thread. Parts and request outlive it.
class Idleness {
public:
    Idleness(Parts& parts, const model::IdleSleepRequest& request) : parts_(parts), request_(request) {}

    /// Looks whether the process is idle as asked. Returns why it is not to sleep now; empty: it is.
    [[nodiscard]] std::string find() {
        const auto state = parts_.status.state();
        const bool is_asleep = state == model::State::asleep || state == model::State::damaged;
        if (is_asleep && request_.sleep.store_is_named) return find_unused();
        if (is_asleep) return "it is already asleep";
        if (parts_.inhibitors.now() && !request_.sleep.ignore_inhibitors) return "sleeps are inhibited";
        if (parts_.turnstile.is_held()) return k_held_back;
        const auto idle = parts_.idle.find();
        if (!idle) return "it is not known whether it is idle";
        if (idle->seconds == 0) return "it is not idle";
        auto why = why_too_short(idle->seconds);
        if (why.empty()) idle_ = idle;
        return why;
    }
    /// Whether it sleeps already, and has been idle or asleep for as long as asked: nothing but moves is
    /// done, and whoever wakes meanwhile stays awake.
    [[nodiscard]] bool is_for_moves() const noexcept { return is_for_moves_; }
    /// Whether the program has not worked since, and has no sleeps wait. Always so where only moves are done,
    /// for what moves sleeps on.
    [[nodiscard]] bool lasts(model::Progress::Phase phase) {
        if (!idle_) return true;
        const bool waits = phase == model::Progress::Phase::waiting && parts_.turnstile.is_held();
        is_over_ |= waits || gate::Gate::instance().activity().touches != idle_->touches;
        return !is_over_;
    }
    /// Whether lasts() has ever returned false.
    [[nodiscard]] bool is_over() const noexcept { return is_over_; }

private:
    [[nodiscard]] std::string find_unused() {
        if (parts_.inhibitors.now() && !request_.sleep.ignore_inhibitors) return "sleeps are inhibited";
        const auto now = parts_.status.report();
        if (now.waiting > 0) return "work waits for it to wake";
        // Time asleep counts as idle.
        auto why = why_too_short(std::max(now.idle_seconds.value_or(0), now.state_seconds));
        is_for_moves_ = why.empty();
        return why;
    }
    /// Why `seconds` are too few, or nothing.
    [[nodiscard]] std::string why_too_short(double seconds) const {
        const auto wanted = std::chrono::duration<double>(request_.only_if_idle).count();
        return seconds < wanted ? model::not_yet("idle", seconds, wanted) : std::string();
    }

    Parts& parts_;
    const model::IdleSleepRequest& request_;
    std::optional<IdleWatch::Idle> idle_; ///< as it was when it was found
    bool is_for_moves_ = false;
    bool is_over_ = false;
};

const SleepOperation::Remedy SleepOperation::k_remedies[] = {
    {ErrorCode::out_of_host_memory, &SleepOperation::give_unneeded_back},
    {ErrorCode::out_of_host_memory, &SleepOperation::give_memory_back},
    {ErrorCode::out_of_disk, &SleepOperation::give_files_back},
    {ErrorCode::out_of_host_memory, &SleepOperation::spill_rest},
    {ErrorCode::out_of_host_memory, &SleepOperation::turn_to_files},
};

SleepOperation::SleepOperation(Parts& parts, const model::SleepRequest& request,
                               const server::ProgressSink& progress, Joint& joint, server::Asker asker,
                               Idleness* idleness)
    : parts_(parts), request_(request), asker_(progress), progress_([this](const model::Progress& at) {
          return (!idleness_ || idleness_->lasts(at.phase)) && asker_(at);
      }),
      joint_(joint), who_asks_(asker), idleness_(idleness), deadline_(start_ + request.timeout) {
    if (idleness && idleness->is_for_moves()) scope_ = sleep::Transactions::Scope::sleepers;
    report_.operation = model::Operation::sleep;
    report_.level = request.level;
    report_.dry_run = request.dry_run;
}

bool SleepOperation::give_unneeded_back() {
    parts_.memory.with_lock(
        [this](LockedMemory& locked) { locked.engine().forget_retained_beside(request_); });
    return give_back_unneeded(parts_);
}

bool SleepOperation::give_files_back() {
    return sleep::telling_of_call(asker_, [this] { return give_back_files(parts_); });
}

bool SleepOperation::spill_rest() {
    if (may_spill()) spill_ = sleep::Transactions::Spill::rest;
    return may_spill();
}

bool SleepOperation::turn_to_files() {
    if (!may_spill()) return false;
    auto spilled = request_;
    spilled.store = model::Store::file;
    spilled.stores.clear();
    spilled.store_is_named = false; // what sleeps stays where it is
    spill_ = sleep::Transactions::Spill::nothing;
    spilled_ = std::move(spilled);
    ignoring_errors([this] { report_.notes.emplace_back("host memory is short: contents went to files"); });
    return true;
}

sleep::Control SleepOperation::control() {
    sleep::Control control{progress_, request_.bounds_all ? deadline_ : Clock::time_point::max()};
    control.wait_for_others = [this] { return joint_.wait_ready(); };
    return control;
}

Result<void> SleepOperation::attempt() noexcept {
    const auto& wanted = spilled_ ? *spilled_ : request_;
    return guarded([&] {
        const auto contexts = keep_contexts(wanted.dry_run || scope_ != sleep::Transactions::Scope::all);
        auto control = this->control();
        // The host memory that it would wait for may be its own.
        if (parts_.retired.has_any()) control.host_patience = Milliseconds(0);
        return parts_.memory.with_lock([&](LockedMemory& locked) {
            if (locked.contents().retained() > 0) control.host_patience = Milliseconds(0);
            return transact(parts_.status, locked,
                            [&] { return locked.sleep(wanted, control, report_, scope_, spill_); });
        });
    });
}

Result<void> SleepOperation::attempt_with_remedies() {
    auto done = attempt();
    for (const auto& remedy : k_remedies) {
        if (done || done.error().code != remedy.shortage) continue;
        bool is_applied = false;
        ignoring_errors([&] { is_applied = (this->*remedy.apply)(); });
        if (is_applied) done = attempt();
    }
    return done;
}

Result<void> SleepOperation::move_contents() {
    // Callbacks that have made ready must hear how it ended, whatever fails from here on.
    auto done = guarded(
        [&] { return Quiesce(parts_, request_, progress_, joint_, deadline_, report_).run(owed_, scope_); });
    if (done) done = attempt_with_remedies();
    if (done || request_.deep || scope_ != sleep::Transactions::Scope::sleepers ||
        !is_of_driver(done.error().code))
        return done;
    scope_ = sleep::Transactions::Scope::copies;
    if (!attempt_with_remedies() || !report_.changed) return done;
    ignoring_errors([&] {
        report_.notes.push_back(
            fmt::format("memory that sleeps in place stays in host memory: {}", done.error().message));
    });
    return {};
}

Result<void> SleepOperation::pass_without_moving() {
    if (report_.changed || request_.dry_run) return {};
    auto control = this->control();
    control.deadline = Clock::time_point::max(); // nothing was prepared that could be late
    return sleep::pass_point_of_no_return(control);
}

bool SleepOperation::pause() noexcept {
    if (request_.level != model::Level::pause || request_.dry_run ||
        scope_ != sleep::Transactions::Scope::all)
        return false;
    return parts_.memory.with_lock([](LockedMemory& locked) { return locked.set_paused(true); });
}

bool SleepOperation::adopt_touch_rule(LockedMemory& locked, const model::SleepRequest& request,
                                      bool adds_to_sleep) {
    return locked.adopt_touch_rule(request, {.is_held = adds_to_sleep, .is_for_idle = idleness_ != nullptr},
                                   is_own());
}

void SleepOperation::apply_to_sleepers() {
    const auto& request = spilled_ ? *spilled_ : request_;
    parts_.memory.with_lock([&](LockedMemory& locked) {
        if (!request.dry_run)
            report_.changed |= adopt_touch_rule(locked, request, asleep_before_ > 0 || was_paused_);
        // The process is already asleep, so a shortage here is not an error. It may wait for a disk, as
        // transactions do.
        ignoring_errors([&] {
            static_cast<void>(transact(parts_.status, locked, [&]() -> Result<void> {
                locked.engine().adjust_asleep(request, report_);
                return {};
            }));
        });
    });
}

Result<void> SleepOperation::check_consent() {
    const auto inhibited = parts_.inhibitors.now();
    if (!inhibited || is_own() || request_.ignore_inhibitors) return {};
    const auto words = inhibited->seconds ? fmt::format("sleeps are inhibited for another {}",
                                                        format_seconds(*inhibited->seconds))
                                          : std::string("sleeps are inhibited");
    if (!request_.dry_run) return make_error(ErrorCode::inhibited, "{}", words);
    refuse(report_, words + "; refused without --ignore-inhibitors", ErrorCode::inhibited);
    return {};
}

Result<void> SleepOperation::check_touches() const {
    // What looks for idle memory asks every process alike.
    if (intercepts() || is_own() || idleness_) return {};
    const auto* const option = request_.on_touch      ? "--on-touch"
                               : request_.gate        ? "--gate"
                               : request_.touch_limit ? "--touch-limit"
                                                      : nullptr;
    if (!option) return {};
    return make_error(ErrorCode::refused, "{}: {}", option, k_not_intercepted);
}

std::string SleepOperation::why_too_early() const {
    const auto awake = parts_.status.seconds_since_wake();
    if (!request_.min_awake || !awake) return {};
    const auto wanted = std::chrono::duration<double>(*request_.min_awake).count();
    return *awake < wanted ? client::woken_too_recently(*awake, wanted - *awake) : std::string();
}

bool SleepOperation::moves_to_files() const noexcept {
    const auto is_file = [](const auto& each) { return each.store == model::Store::file; };
    return names_store() && (!request_.store_is_named || request_.store == model::Store::file) &&
           std::all_of(request_.stores.begin(), request_.stores.end(), is_file);
}

Result<void> SleepOperation::change_deep_contents() {
    // Their host memory was unpinned, so nothing here asks the driver.
    // Whoever looks for what is idle, or too large, drops nothing.
    scope_ = idleness_ ? sleep::Transactions::Scope::sleepers : sleep::Transactions::Scope::deep;
    was_paused_ = true; // held, whether it has memory or not
    give_files_back();
    auto done = move_contents();
    if (done) done = pass_without_moving();
    if (done) apply_to_sleepers();
    if (done && report_.changed) give_back_retired(parts_); // room of what moved, or was given up
    return done;
}

Result<Report> SleepOperation::stay_deep() {
    if (names_store() && !moves_to_files())
        return make_error(ErrorCode::driver_failed,
                          "it sleeps deeply, and until it wakes its contents can only move to files");
    GateSettler settler(parts_.memory, parts_.status);
    const bool leaves_rest = idleness_ && !names_store(); // as who looks for idle memory does
    GPU_SLEEP_TRY(leaves_rest ? pass_without_moving() : change_deep_contents());
    settler.settle();
    complete_report(parts_, report_, start_);
    return std::move(report_);
}

Result<void> SleepOperation::check_deep() {
    if (!request_.deep) return {};
    auto able = parts_.deep.check();
    if (able) return able;
    if (!request_.dry_run) {
        if (parts_.status.state() == model::State::asleep)
            able.error().message = "it is asleep, but " + able.error().message;
        return able;
    }
    refuse(report_, able.error().message + "; gpu-sleep --deep would be refused", able.error().code);
    return {};
}

Result<void> SleepOperation::go_deep() {
    if (!request_.deep || request_.dry_run) return {};
    const auto begun = Clock::now();
    // The driver restores no process with memory that was pinned and out of reach.
    if (!sleep::telling_of_call(asker_, [this] { return unpin_all(parts_); })) {
        if (parts_.memory.is_ending()) return process_is_ending();
        return make_error(ErrorCode::driver_failed,
                          "it is asleep, but not deeply: the driver did not unpin all of its host memory");
    }
    const auto deadline = std::max(deadline_, begun + k_least_time_to_hold);
    const bool is_asked_from_outside = who_asks_ == server::Asker::command;
    auto deep = is_asked_from_outside ? parts_.deep.begin(asker_, deadline)
                                      : parts_.deep.begin_own(progress_, deadline);
    settle_gate(parts_.memory, parts_.status);
    report_.changed |= parts_.deep.is_deep();
    return deep;
}

Result<void> SleepOperation::fall_asleep() {
    const driver::RelaxedCaptureMode relaxed(parts_.memory.api());
    GPU_SLEEP_TRY(check_deep());
    // Files of the last sleep have no names any more, but hold their room on the disk until they are closed,
    // which takes the kernel a while.
    if (request_.spill || model::uses_files(request_)) give_files_back();
    GateSettler settler(parts_.memory, parts_.status);
    asleep_before_ = parts_.memory.asleep_bytes();
    was_paused_ = parts_.memory.with_lock([](const LockedMemory& locked) { return locked.is_paused(); });
    auto done = move_contents();
    const bool has_slept = report_.changed;
    const bool has_moved_alone = scope_ != sleep::Transactions::Scope::all;
    parts_.preparation.has_slept |= has_slept && !has_moved_alone;
    if (has_slept && !has_moved_alone && !request_.dry_run) parts_.deep.note_sleep();
    if (done) done = pass_without_moving();
    const bool has_paused = done && pause();
    report_.changed |= has_paused;
    if (has_paused && asleep_before_ > 0)
        ignoring_errors([&] { report_.notes.emplace_back("it is paused as well"); });
    if ((has_slept && !has_moved_alone) || has_paused) parts_.idle.note_sleep();
    // Who looks for idle memory leaves as it is what sleeps already.
    if (done && (has_slept || has_paused || !idleness_)) apply_to_sleepers();
    // Whoever moves contents wants their room, at once.
    if (done && has_moved(report_)) give_back_retired(parts_);
    // After a failure too: what could not be mapped again sleeps.
    if (!done || report_.changed || request_.deep) parts_.come_first_at_exit();
    settler.settle();
    // Also when callbacks have freed all that was to sleep. What could not be mapped again sleeps, though.
    if (!has_slept && parts_.memory.asleep_bytes() <= asleep_before_)
        parts_.callbacks.call_off(std::move(owed_), deadline_);
    return done;
}

Result<Report> SleepOperation::run() {
    GPU_SLEEP_TRY(model::check_pause(request_));
    GPU_SLEEP_TRY(joint_.announce());
    GPU_SLEEP_TRY(check_touches());
    GPU_SLEEP_TRY(check_consent());
    const auto turn = take_turn(parts_, !request_.dry_run, deadline_, progress_);
    if (!turn) return turn.error();
    if (request_.dry_run && parts_.turnstile.is_held()) refuse(report_, k_held_back, ErrorCode::timed_out);
    if (parts_.memory.is_ending()) return process_is_ending();
    if (auto why = why_too_early(); !why.empty()) return unchanged(parts_, request_, std::move(why), start_);
    const auto is_deep = parts_.deep.look();
    // What is kept of a process that the driver has lost can be saved still.
    const bool saves_lost = !is_deep && is_deep.error().code == ErrorCode::context_lost && moves_to_files();
    if (!is_deep && !saves_lost) return is_deep.error();
    if (saves_lost || *is_deep) return stay_deep();
    GPU_SLEEP_TRY(fall_asleep());
    GPU_SLEEP_TRY(go_deep());
    if (sum_of(report_.devices, &model::DeviceReport::released) > 0 && !is_own() && parts_.is_unguarded())
        ignoring_errors([&] { report_.notes.emplace_back(k_not_intercepted); });
    complete_report(parts_, report_, start_);
    return std::move(report_);
}

Result<Report> sleep_if_idle(Parts& parts, const model::IdleSleepRequest& request,
                             const server::ProgressSink& progress, Joint& joint, server::Asker asker) {
    const auto start = Clock::now();
    const auto& sleep = request.sleep;
    GPU_SLEEP_TRY(model::check_pause(sleep));
    Idleness idleness(parts, request);
    if (auto why = idleness.find(); !why.empty()) return unchanged(parts, sleep, std::move(why), start);
    auto done = SleepOperation(parts, sleep, progress, joint, asker, &idleness).run();
    const bool is_refused = !done && done.error().code == ErrorCode::cancelled && idleness.is_over();
    if (is_refused) return unchanged(parts, sleep, "it is no longer idle", start);
    return done;
}

} // namespace gpu_sleep::agent::operations
