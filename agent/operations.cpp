// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The agent's operations: a sleep or a wake from the request to the answer, and what is put in order after
// them.

#include "agent.hpp"
#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/thread_safety.hpp"
#include "caught/caught.hpp"
#include "caught/share.hpp"
#include "driver/context.hpp"
#include "hooks/catches.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <thread>
#include <utility>

namespace gpu_sleep::agent {

using model::Progress;
using model::Report;

namespace {

/// Leaves the turnstile at the end of an operation.
class Passage {
public:
    explicit Passage(Turnstile& turnstile) noexcept : turnstile_(turnstile) {}
    Passage(const Passage&) = delete;
    Passage& operator=(const Passage&) = delete;
    ~Passage() { turnstile_.leave(); }

private:
    Turnstile& turnstile_;
};

model::SleepRequest all_in_files(model::SleepRequest request) {
    request.store = model::Store::file;
    request.stores.clear();
    return request;
}

/// Why nothing is done any more.
Error ending() {
    return make_error(ErrorCode::no_process, "the process is ending");
}

/// Who only looks finds the gate open, and contexts must not end meanwhile.
std::shared_lock<std::shared_mutex> keep_contexts(bool only_looks) {
    return only_looks ? std::shared_lock(caught::contexts_mutex()) : std::shared_lock<std::shared_mutex>();
}

} // namespace

/// Makes the gate fit what sleeps at the end of an operation, however it ends.
class Agent::GateSettler {
public:
    explicit GateSettler(Agent& agent) noexcept : agent_(agent) {}
    GateSettler(const GateSettler&) = delete;
    GateSettler& operator=(const GateSettler&) = delete;
    ~GateSettler() { agent_.settle_gate(); }

private:
    Agent& agent_;
};

template <class Transaction>
std::invoke_result_t<Transaction> Agent::transact(const LockedMemory& locked, Transaction&& transaction) {
    Report before;
    complete(locked, before);
    {
        const MutexLock lock(before_mutex_);
        before_ = std::move(before);
    }
    auto done = guarded(std::forward<Transaction>(transaction));
    const MutexLock lock(before_mutex_);
    before_.reset();
    return done;
}

server::Outcome Agent::run_here(server::Operation operation) {
    if (Callbacks::works_for_callback())
        return model::Failure{
            make_error(ErrorCode::refused, "a callback may not put its process to sleep or wake it"),
            model::State::awake};
    if (auto started = start(); !started) return model::Failure{started.error(), model::State::awake};
    return server_.post(std::move(operation));
}

Result<server::SharedMemory> Agent::share(const model::ShareRequest& request) {
    return caught::share(request);
}

server::Outcome Agent::run(const server::Operation& operation, const server::ProgressSink& progress,
                           bool is_own, Clock::time_point since) {
    const auto* request = std::get_if<model::SleepRequest>(&operation);
    if (auto started = await_start(); !started) return model::Failure{started.error(), model::State::awake};
    auto report = guarded([&] {
        return request ? sleep(*request, progress, is_own)
                       : wake(std::get<model::WakeRequest>(operation), progress, since);
    });
    if (report) return *std::move(report);
    const auto& tags = request ? request->tags : std::get<model::WakeRequest>(operation).tags;
    return model::Failure{as_it_ends(std::move(report).error()), memory_.state(tags)};
}

Error Agent::as_it_ends(Error error) const {
    // The driver shuts down before the process is gone, and then refuses all.
    if (!exiting_ && error.driver_status != CUDA_ERROR_DEINITIALIZED) return error;
    return ending();
}

bool Agent::tidy() {
    if (!memory_.is_open() || exiting_)
        return false; // at the end the driver takes everything back, and unpins no more
    // The driver may be locked while all sleeps: it is called no more.
    const auto state = this->state();
    const bool is_any_awake = state == model::State::awake || state == model::State::partial;
    if (hooks::catches() && is_any_awake) caught::give_back_due();
    retired_.collect();
    // A piece is unpinned in a context, which must not end just then. Who ends one may wait for the device.
    const std::shared_lock contexts(caught::contexts_mutex(), std::try_to_lock);
    if (!contexts) {
        std::this_thread::sleep_for(Milliseconds(1));
        return retired_.has_waste();
    }
    return retired_.give_back_some();
}

bool Agent::give_back_files() {
    if (exiting_) return false;
    retired_.collect();
    return retired_.give_back_files();
}

bool Agent::give_back_all() {
    if (exiting_) return false;
    retired_.collect();
    bool has_any = retired_.has_any();
    while (tidy()) has_any = true;
    return has_any;
}

void Agent::wake_on_touch() {
    if (wake_wanted_.exchange(true)) return;
    static std::atomic<bool> s_said{false};
    const auto tell = [this](const Error& error) {
        gate::Gate::instance().wake_refused();
        const auto trouble = "a touch could not wake this process yet: " + error.message;
        if (!s_said.exchange(true)) log::warning("{}", trouble);
        set_touch_trouble(trouble);
    };
    const auto hear = [this, tell](const server::Outcome& outcome) {
        wake_wanted_ = false;
        const auto* failure = std::get_if<model::Failure>(&outcome);
        if (!failure) s_said = false;
        if (failure && failure->error.code != ErrorCode::cancelled) return tell(failure->error);
        set_touch_trouble({});
    };
    const auto asked = guarded([&]() -> Result<void> {
        server_.submit_for_touch([] { return gate::Gate::instance().wants_waking(); }, tell, hear);
        return {};
    });
    if (!asked) wake_wanted_ = false; // the touch still waits, and asks again
}

void Agent::set_touch_trouble(std::string_view trouble) {
    const MutexLock lock(touch_mutex_);
    touch_trouble_ = trouble;
}

void Agent::follow(const model::SleepRequest& request, bool adds_to_sleep, bool is_own, Report& report) {
    memory_.with_lock([&](LockedMemory& locked) {
        if (!request.dry_run) report.changed |= locked.follow(request, adds_to_sleep, is_own);
        // What slept, sleeps: no shortage makes a failure of that. It may wait for a disk, as transactions
        // do.
        noted([&] {
            static_cast<void>(transact(locked, [&]() -> Result<void> {
                locked.adjust_asleep(request, report);
                return {};
            }));
        });
    });
}

Result<Report> Agent::sleep(const model::SleepRequest& request, const server::ProgressSink& progress,
                            bool is_own) {
    const auto start = Clock::now();
    const auto deadline = start + request.timeout;
    GPU_SLEEP_TRY(turnstile_.enter(true, deadline, [&] {
        return progress({Progress::Phase::waiting, 0, 0});
    }));
    const Passage passage(turnstile_);
    const driver::RelaxedCaptureMode relaxed(memory_.api());

    Report report;
    report.operation = model::Operation::sleep;
    report.level = request.level;
    report.dry_run = request.dry_run;
    Callbacks::Jobs owed;
    if (exiting_) return ending();
    // Files of the last sleep have no names any more, but hold their room on the disk until they are closed.
    static_cast<void>(give_back_files());
    const GateSettler settler(*this);
    const auto asleep_before = memory_.asleep_bytes();
    const sleep::Control control{progress, request.bounds_all ? deadline : Clock::time_point::max()};
    const auto attempt = [&](const model::SleepRequest& wanted) noexcept {
        return guarded([&]() -> Result<void> {
            const auto contexts = keep_contexts(wanted.dry_run);
            return memory_.with_lock([&](LockedMemory& locked) {
                return transact(locked, [&] { return locked.sleep(wanted, control, report); });
            });
        });
    };
    // Callbacks that have made ready must hear how it ended, whatever fails from here on.
    auto quiet = guarded([&] { return quiesce(request, progress, deadline, owed, report); });
    const bool is_quiet = quiet && *quiet;
    Result<void> done;
    if (!quiet) done = std::move(quiet).error();
    const auto is_short = [&] { return !done && done.error().code == ErrorCode::out_of_host_memory; };
    const auto is_short_of_disk = [&] { return !done && done.error().code == ErrorCode::out_of_disk; };
    // With nothing to do the gate is open: what has come since is not to be touched.
    if (done && (is_quiet || request.dry_run)) done = attempt(request);
    // What the last wake left to be given back, or was freed since, may be what is missing.
    bool has_given = false;
    noted([&] { has_given = (is_short() && give_back_all()) || (is_short_of_disk() && give_back_files()); });
    if (has_given) done = attempt(request);
    std::optional<model::SleepRequest> spilled;
    if (is_short() && request.spill) {
        noted([&] {
            spilled = all_in_files(request);
            report.notes.emplace_back("host memory is short: contents went to files");
        });
        if (spilled) done = attempt(*spilled);
    }
    const bool has_slept = report.changed;
    // Where nothing is moved, this is the point of no return.
    if (done && !has_slept && !request.dry_run && !progress({Progress::Phase::release, 0, 0}))
        done = make_error(ErrorCode::cancelled, "the request was withdrawn");
    if (done) follow(spilled ? *spilled : request, asleep_before > 0, is_own, report);
    // After a failure too: what could not be mapped again sleeps.
    if (!done || report.changed) come_first_at_exit();
    settle_gate();
    // Also when callbacks have freed all that was to sleep. What could not be mapped again sleeps, though.
    if (!has_slept && memory_.asleep_bytes() <= asleep_before) callbacks_.call_off(std::move(owed), deadline);
    if (!done) return std::move(done).error();
    memory_.with_lock([&](const LockedMemory& locked) {
        noted([&] { complete(locked, report); }); // a shortage only thins it
    });
    report.times.total = seconds_since(start);
    return report;
}

Result<void> Agent::check_room(const model::WakeRequest& request) {
    const auto contexts = keep_contexts(true);
    return memory_.with_lock(
        [&](LockedMemory& locked) { return guarded([&] { return locked.check_room(request); }); });
}

Result<sleep::Woken> Agent::try_to_wake(const model::WakeRequest& request,
                                        const server::ProgressSink& progress, Clock::time_point deadline,
                                        Report& report) {
    // Contexts must not end while memory comes back, and what passes a checked gate must not see half of it.
    if (!request.dry_run) GPU_SLEEP_TRY(shut_gate_to_wake(progress, deadline));
    const auto contexts = keep_contexts(request.dry_run);
    const sleep::Control control{progress, request.bounds_all ? deadline : Clock::time_point::max()};
    return memory_.with_lock([&](LockedMemory& locked) {
        return transact(locked, [&] { return locked.wake(request, control, report); });
    });
}

Result<Report> Agent::wake(const model::WakeRequest& request, const server::ProgressSink& progress,
                           Clock::time_point since) {
    const auto start = Clock::now();
    // Of one try; what was asked to bound all bounds the wait for GPU memory, too.
    const auto deadline =
        request.bounds_all ? since + request.timeout + request.wait : start + request.timeout;
    GPU_SLEEP_TRY(turnstile_.enter(false, deadline, [&] {
        return progress({Progress::Phase::waiting, 0, 0});
    }));
    const Passage passage(turnstile_);
    const driver::RelaxedCaptureMode relaxed(memory_.api());

    Report report;
    report.operation = model::Operation::wake;
    report.dry_run = request.dry_run;
    if (exiting_) return ending();
    // Without room nothing is begun, so that the program hears nothing of a wake that is tried often.
    if (!request.dry_run) GPU_SLEEP_TRY(check_room(request));
    const GateSettler settler(*this);
    // What callbacks take comes first: once memory is awake they must run.
    const auto event = std::make_shared<Event>();
    auto jobs = callbacks_.draft_after_wake();
    auto woken = try_to_wake(request, progress, deadline, report);
    if (!woken) {
        settle_gate();
        return std::move(woken).error();
    }
    if (report.changed) {
        const auto called = Clock::now();
        let_take();
        *event = {0, std::move(woken->tags), std::move(woken->dropped_tags)};
        noted([&] { jobs = callbacks_.draft_after_wake(); }); // as they are by now
        report.notes = callbacks_.run_after_wake(jobs, event, called + request.timeout);
        if (!report.notes.empty()) memory_.require_refill(event->dropped_tags);
        report.times.callbacks = seconds_since(called);
    }
    settle_gate();
    if (woken->left) {
        for (const auto& note : report.notes) log::warning("{}", note); // the answer has no place for them
        return *std::move(woken->left);
    }
    memory_.with_lock([&](const LockedMemory& locked) {
        noted([&] {
            for (const auto& file : locked.files_out_of_reach())
                report.notes.push_back(
                    fmt::format("{} stays, and is emptied: the process may not change its directory "
                                "any more, and gpu-snapshot ls, by one who may, removes it",
                                file.string()));
            complete(locked, report);
        }); // a shortage only thins it
    });
    report.times.total = seconds_since(start);
    return report;
}

} // namespace gpu_sleep::agent
