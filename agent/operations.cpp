// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The agent's operations: who waits for whom around a sleep or a wake.

#include "agent.hpp"
#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/quiet_thread.hpp"
#include "caught/caught.hpp"
#include "caught/share.hpp"
#include "driver/drain.hpp"
#include "gate/python_lock.hpp"
#include "hooks/catches.hpp"
#include "unseen.hpp"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <utility>

namespace gpu_sleep::agent {

using model::Progress;
using model::Report;

namespace {

double seconds_since(Clock::time_point start) noexcept {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

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

/// Asks PyTorch for its unused blocks, on a thread of its own: whoever holds Python's lock may keep it for
/// long, and then the sleep goes on without.
void trim_torch(Clock::time_point deadline) {
    constexpr Milliseconds k_limit{2'000};
    struct Done {
        std::mutex mutex;
        std::condition_variable changed;
        bool is_done = false;
    };
    const auto done = std::make_shared<Done>();
    auto thread = start_quiet_thread("gpu-sleep-trim", [done] {
        gate::empty_torch_cache();
        const std::lock_guard lock(done->mutex);
        done->is_done = true;
        done->changed.notify_all();
    });
    if (!thread) return;
    thread->detach();
    std::unique_lock lock(done->mutex);
    if (!done->changed.wait_until(lock, std::min(deadline, Clock::now() + k_limit),
                                  [&] { return done->is_done; }))
        log::warning("PyTorch did not give back its unused memory in time: it is kept too");
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
std::invoke_result_t<Transaction> Agent::transact(Transaction&& transaction) {
    Report before;
    complete(before);
    {
        const std::lock_guard lock(before_mutex_);
        before_ = std::move(before);
    }
    auto done = guarded(std::forward<Transaction>(transaction));
    const std::lock_guard lock(before_mutex_);
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

server::Outcome Agent::run(const server::Operation& operation, const server::ProgressSink& progress) {
    const auto* request = std::get_if<model::SleepRequest>(&operation);
    auto report = guarded([&] {
        return request ? sleep(*request, progress) : wake(std::get<model::WakeRequest>(operation), progress);
    });
    if (report) return *std::move(report);
    const auto& tags = request ? request->tags : std::get<model::WakeRequest>(operation).tags;
    const std::lock_guard lock(memory_mutex_);
    return model::Failure{report.error(), ledger_.state(tags)};
}

bool Agent::tidy() {
    auto* running = running_.load();
    if (!running || exiting_) return false; // at the end the driver takes everything back, and unpins no more
    {
        const std::lock_guard lock(memory_mutex_);
        for (auto& [id, vault] : running->engine.vaults().reap()) retired_.push_back(std::move(vault));
    }
    // A piece is unpinned in a context, which must not end just then. Who ends one may wait for the device.
    const std::shared_lock contexts(caught::contexts_mutex(), std::try_to_lock);
    if (!contexts) {
        std::this_thread::sleep_for(Milliseconds(1));
        return !retired_.empty();
    }
    // One piece after another and without the mutex: more threads, or haste, would slow the program's first
    // work after waking. All are unpinned before the first is unmapped, which stops every thread of the
    // program for a moment.
    for (auto& vault : retired_)
        if (vault.arena && vault.arena->unpin_next()) return true;
    retired_.clear();
    return false;
}

void Agent::add_residual(Report& report) {
    if (!hooks::catches()) return;
    for (const auto& row : caught::residual())
        report.residual.push_back({row.kind, row.device, row.bytes, row.count, row.reason});
}

Result<void> Agent::check_libraries(const model::SleepRequest& request, Report& report) {
    if (!hooks::catches()) return {};
    const auto loaded = find_unseen_libraries();
    std::string trouble;
    if (!loaded)
        trouble = "it is not known which libraries are loaded: " + loaded.error().message;
    else if (!loaded->empty())
        trouble = "use of the GPU that cannot be seen: " + model::list_of(*loaded);
    if (trouble.empty()) return {};
    if (!request.force && !request.dry_run)
        return make_error(loaded ? ErrorCode::unseen_library : loaded.error().code, "{}", trouble);
    report.notes.push_back(std::move(trouble) +
                           (request.force ? "; its work is not held back" : "; refused without --force"));
    return {};
}

Report Agent::status() {
    constexpr Milliseconds k_patience{100};
    constexpr Milliseconds k_look{1};
    Report report;
    if (hooks::catches())
        if (const auto loaded = find_unseen_libraries(); loaded && !loaded->empty())
            report.notes.push_back("use of the GPU that cannot be seen: " + model::list_of(*loaded));
    add_residual(report);
    std::unique_lock lock(memory_mutex_, std::defer_lock);
    for (const auto deadline = Clock::now() + k_patience; !lock.try_lock();
         std::this_thread::sleep_for(k_look)) {
        if (Clock::now() < deadline) continue;
        // A transaction, which may move contents for a long time. Who asks for the state need not wait for
        // it.
        const std::lock_guard guard(before_mutex_);
        if (!before_) continue; // somebody allocates
        auto before = *before_;
        before.residual = std::move(report.residual);
        before.notes = std::move(report.notes);
        before.notes.emplace_back("contents are being moved; this is how it was before");
        return before;
    }
    complete(report);
    return report;
}

Result<server::SharedMemory> Agent::share(const model::ShareRequest& request) {
    return caught::share(request);
}

void Agent::complete(Report& report) {
    report.pid = ::getpid();
    {
        const std::lock_guard lock(name_mutex_);
        report.name = name_;
    }
    report.state = ledger_.state();
    report.tags = ledger_.report();
    report.state_seconds = seconds_since(state_since_);
    report.captures = hooks::catches();
    const auto& gate = gate::Gate::instance();
    report.gate = gate.is_open()      ? model::GateState::open
                  : gate.is_checked() ? model::GateState::checked
                                      : model::GateState::shut;
    report.on_touch = rule_.on_touch;
    const auto waiting = gate.waiting();
    report.waiting = waiting.held_now;
    report.touches = waiting.held_ever;
    report.last_touch = waiting.last;
    auto* running = running_.load();
    if (!running) return;
    report.host_bytes = running->engine.vaults().host_bytes();
    report.file_bytes = running->engine.vaults().file_bytes();
    for (auto& device : report.devices) {
        char name[256] = {};
        if (running->api.cuDeviceGetName(name, sizeof(name) - 1, device.device) == CUDA_SUCCESS)
            device.name = name;
    }
}

Result<Agent::Preview> Agent::preview(const model::SleepRequest& request) {
    const std::lock_guard lock(memory_mutex_);
    auto plan = sleep::plan_sleep(ledger_, request);
    if (!plan) return std::move(plan).error();
    // Callbacks hear only of what is still there: what already sleeps and is given up is out of their reach.
    const auto is_asleep = [&](const std::string& tag) { return !plan->awake_tags.contains(tag); };
    std::erase_if(plan->tags, is_asleep);
    std::erase_if(plan->dropped_tags, is_asleep);
    return Preview{{static_cast<int>(request.level), std::move(plan->tags), std::move(plan->dropped_tags)},
                   std::move(plan->still_kept),
                   plan->is_empty()};
}

Result<bool> Agent::quiesce(const model::SleepRequest& request, const server::ProgressSink& progress,
                            Clock::time_point deadline, std::vector<int>& ran, Report& report) {
    const auto preview = this->preview(request);
    if (!preview) return preview.error();
    for (const auto& tag : preview->still_kept)
        report.notes.push_back(
            fmt::format("tag '{}' keeps its contents: parts of it are preserved, and what sleeps cannot "
                        "be parted; wake it first",
                        tag));
    if (preview->is_empty) return false;
    GPU_SLEEP_TRY(check_libraries(request, report));
    if (request.dry_run) return false;
    auto start = Clock::now();
    static_cast<void>(progress({Progress::Phase::callbacks, 0, 0}));
    if (!preview->event.tags.empty())
        GPU_SLEEP_TRY(callbacks_.run_before_sleep(preview->event, deadline, ran));
    report.times.callbacks = seconds_since(start);
    start = Clock::now();
    const auto keep_going = [&] { return progress({Progress::Phase::drain, 0, 0}); };
    GPU_SLEEP_TRY(shut_gate(deadline, keep_going));
    GPU_SLEEP_TRY(drain(deadline, keep_going));
    report.times.drain = seconds_since(start);
    return true;
}

/// `keep_going`, and also lets one held touch after the other through when that is what the device, or a
/// thread that is inside the driver, seems to wait for: its part of a collective within this process.
std::function<bool()> Agent::coaxing(std::function<bool()> keep_going, bool& has_released) {
    constexpr Milliseconds k_rest{50};
    static constexpr Milliseconds k_between{2};
    return [keep_going = std::move(keep_going), &has_released, next = Clock::now() + k_rest]() mutable {
        if (hooks::catches() && Clock::now() >= next) {
            has_released |= gate::Gate::instance().release_oldest();
            next = Clock::now() + k_between;
        }
        return keep_going();
    };
}

Result<void> Agent::shut_gate(Clock::time_point deadline, const std::function<bool()>& keep_going) {
    if (!hooks::catches()) return {};
    constexpr Milliseconds k_look{1};
    auto& gate = gate::Gate::instance();
    // Looking symbols up takes the loader's lock, which a thread that a closed gate holds may have.
    if (gate::Gate::is_open()) gate::find_python();
    for (bool has_trimmed = false;;) {
        // A capture must not meet a closed gate, and waiting for the device would break it: no new ones
        // begin, and those under way go on until they end.
        gate.hold_captures();
        while (caught::captures_open() != 0) {
            if (Clock::now() >= deadline)
                return make_error(ErrorCode::capture_in_progress,
                                  "a CUDA graph is being captured and did not end in time");
            if (!keep_going()) return make_error(ErrorCode::cancelled, "the request was withdrawn");
            std::this_thread::sleep_for(k_look);
        }
        if (!std::exchange(has_trimmed, true)) trim_torch(deadline);
        bool has_released = false;
        GPU_SLEEP_TRY(gate.close(deadline, coaxing(keep_going, has_released)));
        if (caught::captures_open() == 0) break; // else one began just before: let it end
        settle_gate();
    }
    return {};
}

Result<void> Agent::drain(Clock::time_point deadline, const std::function<bool()>& keep_going) {
    auto& running = *running_.load();
    auto& gate = gate::Gate::instance();
    const auto contexts = driver::active_contexts(running.api);
    if (!contexts) return contexts.error();
    std::vector<CUcontext> all = caught::own_contexts();
    for (const auto& context : *contexts) all.push_back(context.get());
    for (bool has_released = true; has_released;) {
        has_released = false;
        GPU_SLEEP_TRY(
            driver::drain(running.api, all, {deadline, deadline, coaxing(keep_going, has_released)}));
        if (has_released) GPU_SLEEP_TRY(gate.wait_empty(deadline, coaxing(keep_going, has_released)));
    }
    if (hooks::catches()) caught::trim();
    return {};
}

void Agent::settle_gate() noexcept {
    if (!hooks::catches()) return;
    auto& gate = gate::Gate::instance();
    gate::Gate::Rule rule;
    rule.on_touch = rule_.on_touch;
    rule.limit = rule_.limit;
    rule.checked = rule_.checked;
    bool sleeps = false;
    {
        const std::lock_guard lock(memory_mutex_);
        for (const auto& [address, backing] : ledger_.backings()) {
            if (!backing.is_asleep()) continue;
            sleeps = true;
            if (!rule.sleeping.empty() && rule.sleeping.back().end == address) {
                rule.sleeping.back().end = backing.end();
                continue;
            }
            const driver::AddressSpan span{address, backing.bytes};
            const auto added = guarded([&]() -> Result<void> {
                rule.sleeping.push_back({span.address, span.end()});
                return {};
            });
            rule.lists_all &= added.has_value();
        }
    }
    if (sleeps)
        gate.keep_shut(std::move(rule));
    else
        gate.open();
}

void Agent::wake_on_touch() {
    if (wake_wanted_.exchange(true)) return;
    static std::atomic<bool> s_said{false};
    server_.submit(model::WakeRequest{}, [this](const server::Outcome& outcome) {
        wake_wanted_ = false;
        const auto* failure = std::get_if<model::Failure>(&outcome);
        if (!failure)
            s_said = false;
        else if (!s_said.exchange(true))
            log::warning("a touch could not wake this process yet: {}", failure->error.message);
    });
}

void Agent::call_off(const std::vector<int>& ran, Milliseconds timeout) {
    // The request's time may be over: they get as much again.
    const auto limit = Clock::now() + timeout;
    for (const auto& failure : callbacks_.run_after_wake({}, limit, &ran)) log::warning("{}", failure);
}

Result<Report> Agent::sleep(const model::SleepRequest& request, const server::ProgressSink& progress) {
    const auto start = Clock::now();
    const auto deadline = start + request.timeout;
    GPU_SLEEP_TRY(turnstile_.enter(true, deadline, [&] {
        return progress({Progress::Phase::waiting, 0, 0});
    }));
    const Passage passage(turnstile_);
    auto& running = *running_.load();
    const driver::RelaxedCaptureMode relaxed(running.api);

    Report report;
    report.operation = model::Operation::sleep;
    report.level = request.level;
    report.dry_run = request.dry_run;
    std::vector<int> ran;
    if (exiting_) return make_error(ErrorCode::context_lost, "the process is ending");
    const GateSettler settler(*this);
    const auto asleep_before = asleep_bytes();
    const auto quiet = quiesce(request, progress, deadline, ran, report);
    Result<void> done;
    if (!quiet) done = quiet.error();
    const auto attempt = [&](const model::SleepRequest& wanted) -> Result<void> {
        const std::lock_guard lock(memory_mutex_);
        GPU_SLEEP_TRY(transact([&] { return running.engine.sleep(wanted, {progress}, report); }));
        if (report.changed) state_since_ = Clock::now();
        return {};
    };
    const auto is_short = [&] { return !done && done.error().code == ErrorCode::out_of_host_memory; };
    // With nothing to do the gate is open: what has come since is not to be touched.
    if (done && (*quiet || request.dry_run)) done = attempt(request);
    if (is_short()) {
        // What the last wake left to be given back may be what is missing.
        bool has_given = false;
        while (tidy()) has_given = true;
        if (has_given) done = attempt(request);
    }
    if (is_short() && request.spill) {
        report.notes.emplace_back("host memory is short: contents went to files");
        done = attempt(all_in_files(request));
    }
    if (done && report.changed) {
        const std::lock_guard lock(memory_mutex_);
        rule_ = default_rule_;
        if (request.on_touch) rule_.on_touch = *request.on_touch;
        if (request.touch_limit) rule_.limit = request.touch_limit;
        rule_.checked |= request.gate == model::GateMode::checked;
    }
    // After a failure too: what could not be mapped again sleeps.
    if (!done || report.changed) come_first_at_exit();
    settle_gate();
    if (!done) {
        if (asleep_bytes() == asleep_before) call_off(ran, request.timeout);
        return std::move(done).error();
    }
    add_residual(report);
    const std::lock_guard lock(memory_mutex_);
    complete(report);
    report.times.total = seconds_since(start);
    return report;
}

Result<sleep::Woken> Agent::try_to_wake(const model::WakeRequest& request,
                                        const server::ProgressSink& progress, Report& report) {
    // Contexts must not end while memory comes back, and what passes a checked gate must not see half of it.
    auto& gate = gate::Gate::instance();
    if (gate.phase() != gate::Gate::Phase::open && !request.dry_run)
        GPU_SLEEP_TRY(gate.close(Clock::now() + request.timeout, [] { return true; }));
    const std::lock_guard lock(memory_mutex_);
    auto woken = transact([&] { return running_.load()->engine.wake(request, {progress}, report); });
    if (report.changed) state_since_ = Clock::now();
    return woken;
}

Result<sleep::Woken> Agent::wake_within(const model::WakeRequest& request,
                                        const server::ProgressSink& progress, Report& report) {
    constexpr Milliseconds k_pause{50};
    const auto deadline = Clock::now() + request.wait;
    for (;;) {
        auto woken = try_to_wake(request, progress, report);
        const bool is_short = !woken && woken.error().code == ErrorCode::out_of_device_memory;
        if (!is_short || Clock::now() + k_pause > deadline) return woken;
        settle_gate();
        if (!progress({Progress::Phase::waiting, 0, 0}))
            return make_error(ErrorCode::cancelled, "the request was withdrawn while waiting for GPU memory");
        std::this_thread::sleep_for(k_pause);
    }
}

void Agent::require_refill(const std::vector<std::string>& tags) {
    const std::lock_guard lock(memory_mutex_);
    for (auto& [address, backing] : ledger_.backings())
        backing.needs_refill |=
            !backing.is_asleep() && !backing.is_wholly_preserved() &&
            std::find(tags.begin(), tags.end(), ledger_.tag(backing.tag).name) != tags.end();
}

Result<Report> Agent::wake(const model::WakeRequest& request, const server::ProgressSink& progress) {
    const auto start = Clock::now();
    GPU_SLEEP_TRY(turnstile_.enter(false, start + request.timeout + request.wait, [&] {
        return progress({Progress::Phase::waiting, 0, 0});
    }));
    const Passage passage(turnstile_);
    const driver::RelaxedCaptureMode relaxed(running_.load()->api);

    Report report;
    report.operation = model::Operation::wake;
    report.dry_run = request.dry_run;
    if (exiting_) return make_error(ErrorCode::context_lost, "the process is ending");
    const GateSettler settler(*this);
    auto woken = wake_within(request, progress, report);
    if (!woken) {
        settle_gate();
        return std::move(woken).error();
    }
    if (report.changed) {
        const auto called = Clock::now();
        if (hooks::catches()) gate::Gate::instance().let_take();
        report.notes =
            callbacks_.run_after_wake({0, woken->tags, woken->dropped_tags}, called + request.timeout);
        if (!report.notes.empty()) require_refill(woken->dropped_tags);
        report.times.callbacks = seconds_since(called);
    }
    settle_gate();
    if (woken->left) {
        for (const auto& note : report.notes) log::warning("{}", note); // the answer has no place for them
        return *std::move(woken->left);
    }
    add_residual(report);
    const std::lock_guard lock(memory_mutex_);
    complete(report);
    report.times.total = seconds_since(start);
    return report;
}

} // namespace gpu_sleep::agent
