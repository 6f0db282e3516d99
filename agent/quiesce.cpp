// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Getting the program quiet before a sleep: its callbacks asked, the gate shut, its captures ended and the
// device drained. And the gate as it has to be for a wake, and when an operation is over.

#include "agent.hpp"
#include "base/guard.hpp"
#include "caught/caught.hpp"
#include "driver/drain.hpp"
#include "gate/python_lock.hpp"
#include "hooks/catches.hpp"
#include "unseen.hpp"

#include <fmt/ranges.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gpu_sleep::agent {

using model::Progress;
using model::Report;

namespace {

/// What was called for the first time just before the gate was shut.
Result<void> check_late_calls(const model::SleepRequest& request) {
    const auto calls = find_unseen_calls();
    if (request.force || calls.empty()) return {};
    return make_error(ErrorCode::unseen_library, "{}", words_for(calls));
}

} // namespace

Result<void> Agent::check_unseen(const model::SleepRequest& request, Report& report) {
    if (!hooks::catches()) return {};
    const auto uses = find_unseen_uses();
    std::string trouble;
    if (!uses)
        trouble = "it is not known which libraries are loaded: " + uses.error().message;
    else if (!uses->empty())
        trouble = words_for(*uses);
    if (trouble.empty()) return {};
    if (!request.force && !request.dry_run)
        return make_error(uses ? ErrorCode::unseen_library : uses.error().code, "{}", trouble);
    report.notes.push_back(std::move(trouble) +
                           (request.force ? "; its work is not held back" : "; refused without --force"));
    return {};
}

Result<Agent::Preview> Agent::preview(const model::SleepRequest& request) {
    auto plan = memory_.with_lock([&](LockedMemory& locked) { return locked.plan_sleep(request); });
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
                            Clock::time_point deadline, Callbacks::Jobs& owed, Report& report) {
    const auto preview = this->preview(request);
    if (!preview) return preview.error();
    for (const auto& tag : preview->still_kept)
        report.notes.push_back(
            fmt::format("tag '{}' keeps its contents: parts of it are preserved, and what sleeps cannot "
                        "be parted; wake it first",
                        tag));
    if (preview->is_empty) return false;
    GPU_SLEEP_TRY(check_unseen(request, report));
    if (request.dry_run) return false;
    auto start = Clock::now();
    if (!progress({Progress::Phase::callbacks, 0, 0}))
        return make_error(ErrorCode::cancelled, "the request was withdrawn");
    if (!preview->event.tags.empty())
        GPU_SLEEP_TRY(callbacks_.run_before_sleep(preview->event, deadline, owed));
    report.times.callbacks = seconds_since(start);
    start = Clock::now();
    const auto keep_going = [&] { return progress({Progress::Phase::drain, 0, 0}); };
    GPU_SLEEP_TRY(shut_gate(deadline, keep_going));
    GPU_SLEEP_TRY(check_late_calls(request));
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

Result<void> Agent::check_captures_may_end() {
    const auto spans = caught::captures_wait_for();
    if (!spans) return {};
    const auto tags = memory_.tags_at(*spans);
    const auto what = tags.empty() ? std::string("memory") : fmt::format("{}", fmt::join(tags, ", "));
    return make_error(ErrorCode::capture_in_progress,
                      "a CUDA graph is being captured, which waits for {} that sleeps: wake it first", what);
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
            GPU_SLEEP_TRY(check_captures_may_end());
            if (Clock::now() >= deadline)
                return make_error(ErrorCode::capture_in_progress,
                                  "a CUDA graph is being captured and did not end in time");
            if (!keep_going()) return make_error(ErrorCode::cancelled, "the request was withdrawn");
            std::this_thread::sleep_for(k_look);
        }
        // PyTorch could not unmap blocks of its own that sleep, and would be left in disorder.
        if (!std::exchange(has_trimmed, true) && !caught::own_mappings_sleep())
            GPU_SLEEP_TRY(torch_trim_.run(deadline, keep_going));
        bool has_released = false;
        GPU_SLEEP_TRY(gate.close(deadline, coaxing(keep_going, has_released)));
        if (caught::captures_open() == 0) break; // else one began just before: let it end
        settle_gate();
    }
    return {};
}

Result<void> Agent::shut_gate_to_wake(const server::ProgressSink& progress, Clock::time_point deadline) {
    auto& gate = gate::Gate::instance();
    if (gate.phase() == gate::Gate::Phase::open) return {};
    const auto keep_going = [&] { return progress({Progress::Phase::drain, 0, 0}); };
    // Only a checked gate has let any work in that may wait for more, and may let more through.
    bool has_released = false;
    return gate.close(deadline, gate.is_checked() ? coaxing(keep_going, has_released) : keep_going);
}

Result<void> Agent::drain(Clock::time_point deadline, const std::function<bool()>& keep_going) {
    auto& gate = gate::Gate::instance();
    const auto contexts = driver::active_contexts(memory_.api());
    if (!contexts) return contexts.error();
    std::vector<CUcontext> all = caught::own_contexts();
    for (const auto& context : *contexts) all.push_back(context.get());
    for (bool has_released = true; has_released;) {
        has_released = false;
        GPU_SLEEP_TRY(
            driver::drain(memory_.api(), all, {deadline, deadline, coaxing(keep_going, has_released)}));
        if (has_released) GPU_SLEEP_TRY(gate.wait_empty(deadline, coaxing(keep_going, has_released)));
    }
    if (hooks::catches()) caught::trim();
    return {};
}

void Agent::settle_gate() noexcept {
    if (hooks::catches() && !memory_.settle_gate()) set_touch_trouble({});
}

void Agent::let_take() noexcept {
    if (hooks::catches()) memory_.let_take();
}

} // namespace gpu_sleep::agent
