// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A sleep as a list of steps (k_steps), and what is tried when host memory or disk space is short
// (k_remedies).

#include "common/interception.hpp"
#include "intercepted/freeing.hpp"
#include "operations/idleness.hpp"
#include "operations/quiesce.hpp"
#include "operations/steps.hpp"
#include "sharing/sharing.hpp"
#include "unseen/unseen.hpp"

namespace gpu_sleep::agent::operations {

namespace {

using model::Progress;
using model::Report;
using Scope = sleep::Transactions::Scope;

/// For calls of the driver that are under way when it is to be out of reach: they touch nothing, and are
/// short.
constexpr Milliseconds k_least_time_to_hold{5'000};

bool is_of_driver(ErrorCode code) noexcept {
    return code == ErrorCode::driver_failed || code == ErrorCode::context_lost ||
           code == ErrorCode::out_of_device_memory;
}

/// One sleep. Its steps are in k_steps.
class Sleep : public Operation {
public:
    Sleep(const Ground& all, const SleepUses& its, const model::SleepRequest& request,
          const model::IdleSleepRequest* idle, const server::Asking& asking)
        : Operation(all, progress_, request, model::Operation::sleep), its_(its), request_(request),
          asker_(asking.progress), progress_([this](const Progress& at) {
              return (!idleness_ || idleness_->lasts(at.phase)) && asker_(at);
          }),
          joint_(request.joint && !request.dry_run, asker_, asking.directives), who_(asking.asker),
          wanted_(request), quiesce_(all, &its.torch_trim, progress_, joint_, deadline) {
        if (idle) idleness_.emplace(all.status, all.turnstile, its.idle, its.inhibitors, *idle);
        wanted_.deep |= request.for_lock; // the driver may restore no memory that sleeps in place
        report.level = request.level;
    }
    Sleep& operator=(Sleep&&) = delete;
    ~Sleep() {
        ground.deep.end_looks();
        ignoring_errors([this] { settle_shared(); });
    }

    [[nodiscard]] Result<Report> run();

    /// Refuses a request from outside while sleeps are inhibited, and only says so in a dry run; and what
    /// only a gate could keep where the program's calls pass none.
    Result<void> ask() {
        GPU_SLEEP_TRY(model::check_pause(request_));
        GPU_SLEEP_TRY(joint_.announce());
        const auto* const option = request_.on_touch      ? "--on-touch"
                                   : request_.gate        ? "--gate"
                                   : request_.touch_limit ? "--touch-limit"
                                                          : nullptr;
        // What looks for idle memory asks every process alike.
        if (option && !intercepts() && !is_own() && !idleness_)
            return make_error(ErrorCode::refused, "{}: {}", option, k_not_intercepted);
        const auto inhibited = its_.inhibitors.now();
        if (!inhibited || is_own() || request_.ignore_inhibitors) return {};
        const auto words = inhibited->seconds ? fmt::format("sleeps are inhibited for another {}",
                                                            format_seconds(*inhibited->seconds))
                                              : std::string("sleeps are inhibited");
        return refused(make_error(ErrorCode::inhibited, "{}", words),
                       "; refused without --ignore-inhibitors");
    }

    Result<void> take_turn() {
        GPU_SLEEP_TRY(Operation::take_turn(!request_.dry_run));
        if (request_.dry_run && ground.turnstile.is_held()) refuse(report, k_held_back, ErrorCode::timed_out);
        return {};
    }

    Result<void> look() {
        if (const auto awake = ground.status.seconds_since_wake(); request_.min_awake && awake) {
            const auto wanted = std::chrono::duration<double>(*request_.min_awake).count();
            if (*awake < wanted) why_unchanged_ = client::woken_too_recently(*awake, wanted - *awake);
            if (!why_unchanged_.empty()) return withdrawn();
        }
        const auto is_deep = ground.deep.look();
        // What is kept of a process that the driver has lost can be saved still.
        const bool saves_lost =
            !is_deep && is_deep.error().code == ErrorCode::context_lost && moves_to_files();
        if (!is_deep && !saves_lost) return is_deep.error();
        is_away_ = saves_lost || *is_deep;
        if (is_away_ && names_store() && !moves_to_files())
            return make_error(ErrorCode::driver_failed,
                              "it sleeps deeply, and until it wakes its contents can only move to files");
        // Whoever looks for what is idle, or too large, drops nothing.
        if (is_away_) scope_ = idleness_ ? Scope::sleepers : Scope::deep;
        if (!is_away_) relaxed_.emplace(memory.api());
        if (!request_.joint) wanted_.party = is_away_ || pauses() ? 0 : sharing::party_of_one(memory);
        asleep_before_ = memory.asleep_bytes();
        was_held_ = is_away_ || asleep_before_ > 0 ||
                    memory.with_lock([](const LockedMemory& locked) { return locked.is_paused(); });
        return {};
    }

    Result<void> check_deep() {
        if (!request_.deep || is_away_) return {};
        auto able = ground.deep.check(agrees());
        if (able) return able;
        auto error = std::move(able).error();
        if (!request_.dry_run && ground.status.state() == model::State::asleep)
            error.message = "it is asleep, but " + error.message;
        return refused(std::move(error), "; gpu-sleep --deep would be refused");
    }

    /// Reports what the sleep would do. Where nothing is to go to sleep or to be paused, narrows the scope,
    /// unless it is a dry run.
    Result<void> preview() {
        // Files of the last sleep have no names any more, but hold their room on the disk until they are
        // closed, which takes the kernel a while.
        if (request_.spill || is_away_ || model::uses_files(request_)) give_files_back();
        if (leaves_rest()) return {};
        bool stops_work = false;
        auto state = model::State::awake;
        auto plan = GPU_SLEEP_TRY(memory.with_lock([&](LockedMemory& locked) {
            state = locked.state();
            if (request_.dry_run && agrees() && !pauses()) sharing::expect_shared_to_go(memory, locked);
            stops_work = pauses() && pause_would_hold_work(locked);
            auto made = locked.engine().plan_sleep(wanted_);
            if (made && scope_ != Scope::all && scope_ != Scope::deep) made->move_only();
            return made;
        }));
        for (const auto& tag : plan.still_kept)
            note("tag '{}' keeps its contents: parts of it are preserved, and a sleeping tag cannot be "
                 "dropped in part; wake it first",
                 tag);
        if (request_.dry_run && stops_work && state != model::State::awake)
            note("it would be paused as well");
        if (scope_ == Scope::deep) return {}; // nothing of it runs
        sleeps_ = plan.changes_sleep() || stops_work || (agrees() && sharing::shares_any(memory));
        // A deep sleep takes what is left.
        if (sleeps_ || (request_.deep && scope_ == Scope::all)) GPU_SLEEP_TRY(check_unseen());
        // With nothing to put to sleep nobody is told: what comes later is not to be touched.
        if (!sleeps_ && !request_.dry_run) scope_ = plan.takes_out() ? Scope::sleepers : Scope::copies;
        // Callbacks hear only of what is still there: what already sleeps and is given up is out of their
        // reach.
        const auto is_asleep = [&](const std::string& tag) { return !plan.awake_tags.contains(tag); };
        std::erase_if(plan.tags, is_asleep);
        std::erase_if(plan.dropped_tags, is_asleep);
        event_ = {static_cast<int>(request_.level), std::move(plan.tags), std::move(plan.dropped_tags),
                  request_.deep};
        return {};
    }

    Result<void> run_callbacks() {
        const auto begun = Clock::now();
        if (sleeps_ && !event_.tags.empty())
            GPU_SLEEP_TRY(its_.callbacks.run_before_sleep(event_, deadline, owed_));
        report.times.callbacks = seconds_since(begun);
        return {};
    }
    /// Callbacks that have made ready hear that nothing sleeps. What could not be mapped again does, though.
    void call_off() noexcept {
        if (!has_slept_ && memory.asleep_bytes() <= asleep_before_)
            its_.callbacks.call_off(std::exchange(owed_, {}), deadline);
    }

    Result<void> shut_gate() {
        quiet_since_ = Clock::now();
        memory.shared_ranges().take_part(may_agree() ? wanted_.party : 0);
        if (holds_work()) GPU_SLEEP_TRY(leave_in_place(quiesce_.shut_gate(sleeps_ && !pauses())));
        // One may have been called for the first time just before.
        return sleeps_ && !request_.force ? unseen::check_calls() : Result<void>();
    }
    void settle_gate() noexcept {
        its_.come_first_at_exit(); // what could not be mapped again sleeps
        ground.settle_gate();
    }
    Result<void> drain() { return holds_work() ? leave_in_place(quiesce_.drain()) : Result<void>(); }
    Result<void> await_others() {
        if (!holds_work()) return {};
        GPU_SLEEP_TRY(leave_in_place(quiesce_.await_others()));
        if (sleeps_ && intercepts() && !pauses()) intercepted::trim();
        report.times.drain = seconds_since(quiet_since_);
        return {};
    }
    /// What processes share goes to sleep if all of them do.
    Result<void> agree_on_shared() {
        if (!may_agree()) return {};
        auto stays = GPU_SLEEP_TRY(sharing::agree_on_shared(memory, wanted_, deadline, [this] {
            return progress({Progress::Phase::drain, 0, 0});
        }));
        if (request_.deep && !stays.empty())
            return make_error(ErrorCode::driver_failed, "it cannot sleep deeply: {}", stays.front());
        std::ranges::move(stays, std::back_inserter(report.notes));
        return {};
    }
    void settle_shared() {
        memory.with_lock([this](LockedMemory& locked) { sharing::settle_shared(memory, locked); });
        memory.shared_ranges().take_part(0);
    }

    /// The transaction, as often as remedies allow.
    Result<void> move_contents() {
        if (leaves_rest()) return {};
        const bool stayed_before = stays_in_place_.has_value();
        auto done = leave_in_place(attempt_with_remedies());
        if (stays_in_place_ && !stayed_before) done = attempt_with_remedies();
        if (stays_in_place_ && (!done || !report.changed)) return *stays_in_place_;
        if (stays_in_place_)
            note("memory that the GPU uses in host memory stays there: {}", stays_in_place_->message);
        has_slept_ = report.changed;
        if (has_slept_ && scope_ == Scope::all) {
            its_.preparation.has_slept = true;
            ground.deep.note_sleep();
            its_.idle.note_sleep();
        }
        return done;
    }

    /// Where nothing was moved, this is the point of no return.
    Result<void> pause() {
        if (!report.changed) {
            auto control = this->control();
            control.deadline = Clock::time_point::max(); // nothing was prepared that could be late
            static_cast<void>(GPU_SLEEP_TRY(sleep::pass_point_of_no_return(control)));
        }
        const bool is_paused = pauses() && scope_ == Scope::all &&
                               memory.with_lock([](LockedMemory& locked) { return locked.set_paused(true); });
        report.changed |= is_paused;
        if (is_paused) its_.idle.note_sleep();
        if (is_paused && asleep_before_ > 0) note("it is paused as well");
        return {};
    }

    /// Does what the request says of all that sleeps, whichever request put it to sleep.
    Result<void> apply_to_sleepers() {
        // Who looks for idle memory leaves as it is what sleeps already.
        if (leaves_rest() || ((idleness_ || request_.for_lock) && !is_away_ && !report.changed)) return {};
        memory.with_lock([&](LockedMemory& locked) {
            if (!request_.dry_run)
                report.changed |= locked.adopt_touch_rule(
                    wanted_, {.is_held = was_held_, .is_for_idle = idleness_.has_value()}, is_own());
            // The process is already asleep, so a shortage here is not an error. It may wait for a disk, as
            // transactions do.
            ignoring_errors([&] {
                static_cast<void>(ground.transact(locked, [&]() -> Result<void> {
                    kept_ = locked.engine().adjust_asleep(wanted_, report);
                    return {};
                }));
            });
        });
        return {};
    }

    Result<void> open_gate() {
        // Whoever moves contents wants their room, at once.
        const bool has_moved = sum_of(report.devices, &model::DeviceReport::relocated) > 0;
        if (is_away_ ? report.changed : has_moved) ground.giving_back.retired();
        if (report.changed || request_.deep) its_.come_first_at_exit();
        ground.settle_gate();
        call_off();       // callbacks have freed all that was to sleep
        relaxed_.reset(); // while the driver is within reach
        return {};
    }

    /// The driver restores no process with memory that was pinned and out of reach. A command has it lock the
    /// process then, or it is to checkpoint it.
    Result<void> unpin() {
        if ((!request_.deep && !request_.for_lock) || is_away_) return {};
        if (request_.for_lock) memory.begin_lock(has_slept_ ? event_.tags : std::vector<std::string>());
        if (request_.for_lock)
            GPU_SLEEP_TRY(memory.with_lock([](auto& locked) { return locked.engine().leave_host_memory(); }));
        if (sleep::telling_of_call(asker_, [this] { return ground.giving_back.unpin_all(); }))
            return request_.for_lock ? ground.deep.await_driver(asker_, deadline, false) : Result<void>();
        if (memory.is_ending()) return process_is_ending();
        return make_error(ErrorCode::driver_failed,
                          "it is asleep, but not {}: the driver did not unpin all of its host memory",
                          request_.deep ? "deeply" : "locked");
    }

    Result<void> go_deep() {
        if (!request_.deep || is_away_) return {};
        const auto until = std::max(deadline, Clock::now() + k_least_time_to_hold);
        const bool is_of_command = who_ == server::Asker::command;
        auto deep = ground.deep.begin(is_of_command ? asker_ : progress_, until, !is_of_command);
        ground.settle_gate();
        report.changed |= ground.deep.is_deep();
        return deep;
    }

private:
    [[nodiscard]] Report unchanged();

    /// A remedy for a shortage. Each is tried once, in the order of the table, and then the transaction
    /// again.
    struct Remedy {
        ErrorCode shortage;
        /// False: there was nothing to do.
        bool (Sleep::*apply)();
    };
    static const std::array<Remedy, 5> k_remedies;

    /// Gives back host memory that the last wake left, that was freed since, or that is retained of memory
    /// which does not sleep now.
    bool give_unneeded_back() {
        memory.with_lock([this](LockedMemory& locked) { locked.engine().forget_retained_beside(request_); });
        return ground.giving_back.unneeded();
    }
    bool give_memory_back() { return ground.giving_back.all(); }
    bool give_files_back() {
        return sleep::telling_of_call(asker_, [this] { return ground.giving_back.files(); });
    }
    /// If the request allows it: what the first place has no room for goes to the others, or else all of it.
    bool spill_rest() {
        if (may_spill()) spill_ = model::k_other_stores;
        return may_spill();
    }
    bool spill_all() {
        if (!may_spill()) return false;
        spill_ = {};
        wanted_.store = model::k_other_stores.front();
        wanted_.stores.clear();
        wanted_.store_is_named = false; // what sleeps stays where it is
        note("host memory is short: contents went to {}", model::in_words(wanted_.store));
        return true;
    }
    [[nodiscard]] bool may_spill() const noexcept {
        return request_.spill && (scope_ == Scope::all || (request_.deep && !names_store()));
    }
    /// Where the driver fails in taking out what sleeps in its own memory, has the copies alone move.
    Result<void> leave_in_place(Result<void> done) {
        if (done || request_.deep || scope_ != Scope::sleepers || !is_of_driver(done.error().code))
            return done;
        scope_ = Scope::copies;
        stays_in_place_ = std::move(done).error();
        return {};
    }

    Result<void> attempt_with_remedies() {
        auto done = guarded([this] { return attempt(); });
        for (const auto& remedy : k_remedies) {
            if (done || done.error().code != remedy.shortage) continue;
            bool is_applied = false;
            ignoring_errors([&] { is_applied = (this->*remedy.apply)(); });
            if (is_applied) done = guarded([this] { return attempt(); });
        }
        return done;
    }
    Result<void> attempt() {
        const auto contexts = keep_contexts(request_.dry_run || scope_ != Scope::all);
        auto control = this->control();
        // The host memory that it would wait for may be its own.
        if (ground.giving_back.has_retired()) control.host_patience = Milliseconds(0);
        return memory.with_lock([&](LockedMemory& locked) {
            if (locked.contents().retained() > 0) control.host_patience = Milliseconds(0);
            return ground.transact(locked,
                                   [&] { return locked.sleep(wanted_, control, report, scope_, spill_); });
        });
    }

    /// Returns `why`; a dry run says it, and what it would come to, and goes on.
    Result<void> refused(Error why, const char* comes_to) {
        if (!request_.dry_run) return why;
        refuse(report, why.message + comes_to, why.code);
        return {};
    }
    /// Refuses a sleep, unless forced, while a library is loaded whose work no gate holds, or once the
    /// program has called an entry point of the driver that this build does not know; notes it otherwise.
    /// Only where all the program's work is intercepted: a program that hands its memory over promises by
    /// itself to leave it alone.
    Result<void> check_unseen() {
        if (!intercepts())
            return pauses() ? make_error(ErrorCode::driver_failed, "{}", k_not_intercepted) : Result<void>();
        auto seen = unseen::check_all();
        if (seen) return {};
        if (!request_.force) return refused(std::move(seen).error(), "; refused without --force");
        note("{}; its work is not held back", seen.error().message);
        return {};
    }

    /// How the asker follows the transaction.
    [[nodiscard]] sleep::Control control() {
        sleep::Control control{progress_, request_.bounds_all ? deadline : Clock::time_point::max()};
        control.wait_for_others = [this] { return wait_ready(joint_, request_.party); };
        return control;
    }
    /// Whether the program itself asks: then no inhibitor stands in its way.
    [[nodiscard]] bool is_own() const noexcept { return who_ == server::Asker::program; }
    /// Whether all who share memory with it may go along, of which there may be none.
    [[nodiscard]] bool agrees() const noexcept { return request_.joint || wanted_.party != 0; }
    /// Whether memory that processes share may go to sleep.
    [[nodiscard]] bool may_agree() const noexcept {
        return holds_work() && agrees() && !request_.dry_run && !pauses() && intercepts();
    }
    [[nodiscard]] bool pauses() const noexcept { return request_.level == model::Level::pause; }
    [[nodiscard]] bool holds_work() const noexcept {
        return !is_away_ && (scope_ == Scope::all || scope_ == Scope::sleepers);
    }
    /// Whether a process that sleeps deeply is to stay as it is: who looks for idle memory changes it only by
    /// a move.
    [[nodiscard]] bool leaves_rest() const noexcept { return is_away_ && idleness_ && !names_store(); }
    /// Whether it names a store for contents that sleep already.
    [[nodiscard]] bool names_store() const noexcept {
        return request_.store_is_named || !request_.stores.empty();
    }
    /// Whether it names files, and files alone.
    [[nodiscard]] bool moves_to_files() const noexcept {
        const auto is_file = [](const auto& each) { return each.store == model::Store::file; };
        return names_store() && (!request_.store_is_named || request_.store == model::Store::file) &&
               std::ranges::all_of(request_.stores, is_file);
    }

    const SleepUses& its_;
    const model::SleepRequest& request_;
    const server::ProgressSink& asker_;
    const server::ProgressSink progress_; ///< the asker's, while the process is idle where that is asked for
    Joint joint_;
    const server::Asker who_;
    std::optional<Idleness> idleness_; ///< what the sleep is for, if it is for that alone
    model::SleepRequest wanted_;       ///< the request as it is carried out
    Scope scope_ = Scope::all;
    sleep::Transactions::Spill spill_;
    Quiesce quiesce_;
    std::optional<driver::RelaxedCaptureMode> relaxed_;
    std::string why_unchanged_;           ///< and no failure
    std::optional<Error> stays_in_place_; ///< what sleeps in its own memory
    Result<void> kept_;                   ///< whether files that are to stay do, as the last step that fails
    Clock::time_point quiet_since_{};
    bool is_away_ = false;   ///< it sleeps deeply, or the driver has lost it
    bool was_held_ = false;  ///< some of it slept, or it was paused
    bool has_slept_ = false; ///< something went to sleep, or what sleeps has moved
    bool sleeps_ = false;    ///< something goes to sleep or is paused; what sleeps may move
    Bytes asleep_before_ = 0;
    Event event_;          ///< what callbacks are told
    Callbacks::Jobs owed_; ///< if the sleep does not come
};

const std::array<Sleep::Remedy, 5> Sleep::k_remedies{{
    {ErrorCode::out_of_host_memory, &Sleep::give_unneeded_back},
    {ErrorCode::out_of_host_memory, &Sleep::give_memory_back},
    {ErrorCode::out_of_disk, &Sleep::give_files_back},
    {ErrorCode::out_of_host_memory, &Sleep::spill_rest},
    {ErrorCode::out_of_host_memory, &Sleep::spill_all},
}};

/// A sleep, and a dry run of it as far as nothing changes.
constexpr Step<Sleep> k_steps[] = {
    {"ask whether it may sleep", &Sleep::ask},
    {"wait for other operations", &Sleep::take_turn},
    {"look how it sleeps", &Sleep::look},
    {"look whether it can sleep deeply", &Sleep::check_deep},
    {"look what is to sleep", &Sleep::preview},
    {"callbacks before the sleep", &Sleep::run_callbacks, &Sleep::call_off, Progress::Phase::callbacks, true},
    {"shut the gate", &Sleep::shut_gate, &Sleep::settle_gate, Progress::Phase::drain, true},
    {"drain GPU work", &Sleep::drain, nullptr, Progress::Phase::drain, true},
    {"wait for the other processes", &Sleep::await_others, nullptr, Progress::Phase::drain, true},
    {"agree on shared memory", &Sleep::agree_on_shared, nullptr, Progress::Phase::drain, true},
    {"move contents", &Sleep::move_contents, nullptr, std::nullopt, true},
    {"pause", &Sleep::pause, nullptr, std::nullopt, true},
    {"set what GPU work does", &Sleep::apply_to_sleepers, nullptr, std::nullopt, true},
    {"settle the gate", &Sleep::open_gate, nullptr, std::nullopt, true},
    {"unpin host memory", &Sleep::unpin, nullptr, std::nullopt, true},
    {"have the driver checkpoint", &Sleep::go_deep, nullptr, std::nullopt, true},
};

/// Reports that nothing was put to sleep, and why.
Report Sleep::unchanged() {
    report = {};
    auto as_before = reported();
    as_before.operation = model::Operation::sleep;
    as_before.level = request_.level;
    as_before.dry_run = request_.dry_run;
    refuse(as_before, why_unchanged_);
    return as_before;
}

Result<Report> Sleep::run() {
    if (idleness_) {
        GPU_SLEEP_TRY(model::check_pause(request_));
        why_unchanged_ = idleness_->find();
        if (!why_unchanged_.empty()) return unchanged();
        if (idleness_->is_for_moves()) scope_ = Scope::sleepers;
    }
    auto done = run_steps<Sleep>(*this, k_steps, request_.dry_run, true);
    if (done && request_.dry_run) done = attempt();
    if (done && request_.dry_run) done = apply_to_sleepers();
    if (!done && done.error().code == ErrorCode::cancelled && idleness_ && idleness_->is_over())
        why_unchanged_ = "it is no longer idle";
    if (!why_unchanged_.empty()) return unchanged();
    if (done) done = std::move(kept_);
    if (!done) return std::move(done).error();
    if (sum_of(report.devices, &model::DeviceReport::released) > 0 && !is_own() && !intercepts() &&
        !its_.callbacks.has_before_sleep())
        note("{}", k_not_intercepted);
    return reported();
}

} // namespace

Result<Report> sleep(const Ground& ground, const SleepUses& its, const model::SleepRequest& request,
                     const model::IdleSleepRequest* only_if_idle, const server::Asking& asking) {
    return Sleep(ground, its, request, only_if_idle, asking).run();
}

} // namespace gpu_sleep::agent::operations
