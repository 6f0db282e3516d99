// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The agent's operations: who waits for whom around a sleep or a wake.

#include "agent.hpp"
#include "base/guard.hpp"
#include "base/log.hpp"
#include "driver/context.hpp"

#include <unistd.h>

#include <algorithm>
#include <thread>

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

} // namespace

server::Outcome Agent::run_here(server::Operation operation) {
    if (Callbacks::is_callback_thread())
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
    const std::lock_guard lock(memory_mutex_);
    return model::Failure{report.error(), ledger_.state()};
}

void Agent::after_reply() {
    auto* running = running_.load();
    if (!running) return;
    std::vector<sleep::Vault> retired;
    {
        const std::lock_guard lock(memory_mutex_);
        retired = running->engine.vaults().reap();
    }
    // Unpinned and returned here, one piece after another and without the mutex: more threads, or haste,
    // would slow the program's first work after waking.
}

Report Agent::status() {
    Report report;
    const std::lock_guard lock(memory_mutex_);
    complete(report);
    return report;
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
    const auto* running = running_.load();
    if (!running) return;
    report.host_bytes = running_.load()->engine.vaults().host_bytes();
    for (auto& device : report.devices) {
        char name[256] = {};
        if (running->api.cuDeviceGetName(name, sizeof(name) - 1, device.device) == CUDA_SUCCESS)
            device.name = name;
    }
}

Result<Event> Agent::preview(const model::SleepRequest& request) {
    const std::lock_guard lock(memory_mutex_);
    auto plan = sleep::plan_sleep(ledger_, request);
    if (!plan) return std::move(plan).error();
    return Event{static_cast<int>(request.level), std::move(plan->tags), std::move(plan->dropped_tags)};
}

Result<void> Agent::quiesce(const model::SleepRequest& request, const server::ProgressSink& progress,
                            Clock::time_point deadline, std::vector<int>& ran, Report& report) {
    auto event = preview(request);
    if (!event) return std::move(event).error();
    if (request.dry_run || event->tags.empty()) return {};
    auto start = Clock::now();
    static_cast<void>(progress({Progress::Phase::callbacks, 0, 0}));
    GPU_SLEEP_TRY(callbacks_.run_before_sleep(*event, deadline, ran));
    report.times.callbacks = seconds_since(start);
    start = Clock::now();
    auto& running = *running_.load();
    const auto keep_going = [&] { return progress({Progress::Phase::drain, 0, 0}); };
    const auto contexts = driver::active_contexts(running.api);
    if (!contexts) return contexts.error();
    GPU_SLEEP_TRY(driver::drain(running.api, *contexts, {deadline, deadline, keep_going}));
    report.times.drain = seconds_since(start);
    return {};
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
    auto done = quiesce(request, progress, deadline, ran, report);
    if (done) {
        const std::lock_guard lock(memory_mutex_);
        done = running.engine.sleep(request, {progress}, report);
        if (done && report.changed) state_since_ = Clock::now();
        if (done) complete(report);
    }
    if (!done) {
        // Those that made ready for a sleep that did not come are told that all is as before.
        for (const auto& failure : callbacks_.run_after_wake({}, deadline, &ran)) log::warning("{}", failure);
        return std::move(done).error();
    }
    report.times.total = seconds_since(start);
    return report;
}

Result<Event> Agent::try_to_wake(const model::WakeRequest& request, const server::ProgressSink& progress,
                                 Report& report) {
    const std::lock_guard lock(memory_mutex_);
    auto plan = sleep::plan_wake(ledger_, request);
    if (!plan) return std::move(plan).error();
    GPU_SLEEP_TRY(running_.load()->engine.wake(request, {progress}, report));
    if (report.changed) state_since_ = Clock::now();
    return Event{0, std::move(plan->tags), std::move(plan->dropped_tags)};
}

Result<Event> Agent::wake_within(const model::WakeRequest& request, const server::ProgressSink& progress,
                                 Report& report) {
    constexpr Milliseconds k_pause{50};
    const auto deadline = Clock::now() + request.wait;
    for (;;) {
        auto woken = try_to_wake(request, progress, report);
        const bool is_short = !woken && woken.error().code == ErrorCode::out_of_device_memory;
        if (!is_short || Clock::now() + k_pause > deadline) return woken;
        if (!progress({Progress::Phase::waiting, 0, 0}))
            return make_error(ErrorCode::cancelled, "the request was withdrawn while waiting for GPU memory");
        std::this_thread::sleep_for(k_pause);
    }
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
    const auto event = wake_within(request, progress, report);
    if (!event) return event.error();
    if (report.changed) {
        const auto called = Clock::now();
        report.notes = callbacks_.run_after_wake(*event, called + request.timeout);
        report.times.callbacks = seconds_since(called);
    }
    const std::lock_guard lock(memory_mutex_);
    complete(report);
    report.times.total = seconds_since(start);
    return report;
}

} // namespace gpu_sleep::agent
