// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking, shutting, waiting.

#include "operations/quiesce.hpp"

#include "base/log.hpp"
#include "common/interception.hpp"
#include "driver/context.hpp"
#include "gate/gate.hpp"
#include "intercepted/captures.hpp"
#include "intercepted/freeing.hpp"
#include "intercepted/own_contexts.hpp"
#include "intercepted/virtual_memory.hpp"
#include "interpreter_lock/python_lock.hpp"
#include "operations/turn.hpp"
#include "operations/unseen.hpp"

#include <fmt/ranges.h>

namespace gpu_sleep::agent::operations {

using model::Progress;

namespace {

/// `keep_going`, and also lets one held touch after the other through when that is what the device, or a
/// thread that is inside the driver, seems to wait for: its part of a collective within this process.
std::function<bool()> coaxing(std::function<bool()> keep_going, bool& has_released) {
    constexpr Milliseconds k_rest{50};
    static constexpr Milliseconds k_between{2};
    return [keep_going = std::move(keep_going), &has_released, next = Clock::now() + k_rest]() mutable {
        if (intercepts() && Clock::now() >= next) {
            has_released |= gate::Gate::instance().release_oldest();
            next = Clock::now() + k_between;
        }
        return keep_going();
    };
}

} // namespace

Result<void> Quiesce::check_unseen() {
    if (!intercepts())
        return pauses() ? make_error(ErrorCode::driver_failed, "{}", k_not_intercepted) : Result<void>();
    const auto uses = find_unseen_uses(Look::calls);
    std::string trouble;
    if (!uses)
        trouble = "it is not known which libraries are loaded: " + uses.error().message;
    else if (!uses->empty())
        trouble = words_for(*uses);
    if (trouble.empty()) return {};
    const auto code = uses ? ErrorCode::unseen_library : uses.error().code;
    if (!request_.force && !request_.dry_run) return make_error(code, "{}", trouble);
    if (request_.force)
        report_.notes.push_back(trouble + "; its work is not held back");
    else
        refuse(report_, trouble + "; refused without --force", code);
    return {};
}

Result<void> Quiesce::check_late_calls() const {
    const auto calls = find_unseen_calls();
    if (request_.force || calls.empty()) return {};
    return make_error(ErrorCode::unseen_library, "{}", words_for(calls));
}

Result<Quiesce::Preview> Quiesce::preview(Scope scope) const {
    bool stops_work = false;
    auto state = model::State::awake;
    auto plan = parts_.memory.with_lock([&](LockedMemory& locked) {
        state = locked.state();
        const bool is_any_awake = state == model::State::awake || state == model::State::partial;
        stops_work = pauses() && !locked.is_paused() && (is_any_awake || gate::Gate::instance().is_checked());
        auto made = locked.engine().plan_sleep(request_);
        if (made && scope != Scope::all && scope != Scope::deep) made->move_only();
        return made;
    });
    if (!plan) return std::move(plan).error();
    // Callbacks hear only of what is still there: what already sleeps and is given up is out of their reach.
    const auto is_asleep = [&](const std::string& tag) { return !plan->awake_tags.contains(tag); };
    std::erase_if(plan->tags, is_asleep);
    std::erase_if(plan->dropped_tags, is_asleep);
    return Preview{{static_cast<int>(request_.level), std::move(plan->tags), std::move(plan->dropped_tags),
                    request_.deep},
                   std::move(plan->still_kept),
                   !plan->changes_sleep() && !stops_work,
                   plan->takes_out(),
                   stops_work && state != model::State::awake};
}

Result<void> Quiesce::run(Callbacks::Jobs& owed, Scope& scope) {
    const auto preview = this->preview(scope);
    if (!preview) return preview.error();
    for (const auto& tag : preview->still_kept)
        report_.notes.push_back(fmt::format("tag '{}' keeps its contents: parts of it are preserved, and a "
                                            "sleeping tag cannot be dropped in part; wake it first",
                                            tag));
    if (request_.dry_run && preview->pauses_besides) report_.notes.emplace_back("it would be paused as well");
    if (scope == Scope::deep) return {}; // nothing of it runs
    const bool sleeps = !preview->is_empty;
    // A deep sleep takes what is left.
    if (sleeps || (request_.deep && scope == Scope::all)) GPU_SLEEP_TRY(check_unseen());
    if (request_.dry_run) return {};
    // With nothing to put to sleep nobody is told: what comes later is not to be touched.
    if (!sleeps) scope = preview->takes_out ? Scope::sleepers : Scope::copies;
    if (scope == Scope::copies) return {};
    if (sleeps) GPU_SLEEP_TRY(run_callbacks(preview->event, owed));
    const auto start = Clock::now();
    GPU_SLEEP_TRY(shut_gate(sleeps));
    if (sleeps) GPU_SLEEP_TRY(check_late_calls());
    GPU_SLEEP_TRY(drain());
    GPU_SLEEP_TRY(await_others());
    if (sleeps && intercepts() && !pauses()) intercepted::trim();
    report_.times.drain = seconds_since(start);
    return {};
}

Result<void> Quiesce::run_callbacks(const Event& event, Callbacks::Jobs& owed) {
    const log::Step step("callbacks before the sleep");
    const auto start = Clock::now();
    if (!progress_({Progress::Phase::callbacks, 0, 0})) return withdrawn();
    if (!event.tags.empty()) GPU_SLEEP_TRY(parts_.callbacks.run_before_sleep(event, deadline_, owed));
    report_.times.callbacks = seconds_since(start);
    return {};
}

std::function<bool()> Quiesce::keeps_coaxing(bool& has_released) {
    auto keep_going = [this] { return keeps_going(); };
    if (!joint_.is_joint()) return coaxing(std::move(keep_going), has_released);
    // A process that let its own work through would run ahead of those that it waits for, and never be
    // drained.
    return [this, &has_released] {
        if (joint_.wants_one_through()) has_released |= gate::Gate::instance().release_oldest();
        return keeps_going();
    };
}

Result<void> Quiesce::check_captures_may_end() const {
    const auto spans = intercepted::captures_wait_for();
    if (!spans) return {};
    const auto tags = parts_.memory.tags_at(*spans);
    const auto what = tags.empty() ? std::string("memory") : fmt::format("{}", fmt::join(tags, ", "));
    return make_error(ErrorCode::capture_in_progress,
                      "the capture of a CUDA graph waits for {}, which sleeps: wake it first", what);
}

Result<void> Quiesce::end_captures() {
    constexpr Milliseconds k_look{1};
    // A capture must not meet a closed gate, and waiting for the device would break it: no new ones begin,
    // and those under way go on until they end.
    gate::Gate::instance().hold_captures();
    while (intercepted::captures_open() != 0) {
        GPU_SLEEP_TRY(check_captures_may_end());
        if (Clock::now() >= deadline_)
            return make_error(ErrorCode::capture_in_progress,
                              "a CUDA graph is being captured and did not end in time");
        if (!keeps_going()) return withdrawn();
        std::this_thread::sleep_for(k_look);
    }
    return {};
}

Result<void> Quiesce::shut_gate(bool trims) {
    if (!intercepts()) return {};
    const log::Step step("shut the gate");
    auto& gate = gate::Gate::instance();
    const auto keep_going = [this] { return keeps_going(); };
    // Looking symbols up takes the loader's lock, which a thread that a closed gate holds may have.
    if (gate::Gate::is_open()) interpreter_lock::find_python(gate.loader_lock());
    for (bool has_trimmed = !trims || pauses();;) {
        GPU_SLEEP_TRY(end_captures());
        // PyTorch could not unmap blocks of its own that sleep, and would be left in disorder.
        if (!std::exchange(has_trimmed, true) && !intercepted::own_mappings_sleep())
            GPU_SLEEP_TRY(parts_.torch_trim.run(deadline_, keep_going));
        bool has_released = false;
        GPU_SLEEP_TRY(gate.close(deadline_, keeps_coaxing(has_released)));
        if (intercepted::captures_open() == 0) return {};
        settle_gate(parts_.memory, parts_.status); // one began just before: let it end
    }
}

Result<void> Quiesce::drain() {
    const log::Step step("drain GPU work");
    const auto& api = parts_.memory.api();
    const auto contexts = driver::active_contexts(api);
    if (!contexts) return contexts.error();
    const auto all = intercepted::all_contexts(*contexts);
    for (bool has_released = true; has_released;) {
        has_released = false;
        GPU_SLEEP_TRY(driver::drain(api, all, {deadline_, deadline_, keeps_coaxing(has_released)}));
        if (has_released)
            GPU_SLEEP_TRY(gate::Gate::instance().wait_empty(deadline_, keeps_coaxing(has_released)));
    }
    return {};
}

Result<void> Quiesce::await_others() {
    if (!joint_.is_joint()) return {};
    const log::Step step("wait for the other processes");
    const auto held = [this] {
        give_way_while_waiting(parts_);
        return intercepts() ? gate::Gate::instance().releasable() : 0;
    };
    for (;;) {
        const auto said = joint_.wait_drained(held);
        if (!said) return said.error();
        if (said->kind == model::Directive::Kind::prepare) return {};
        GPU_SLEEP_TRY(let_through(said->count));
    }
}

Result<void> Quiesce::let_through(std::uint32_t count) {
    constexpr Milliseconds k_arrives_within{2}; // after the call before it has returned
    constexpr Milliseconds k_waits_for_others{2};
    constexpr std::chrono::microseconds k_look{50};
    auto& gate = gate::Gate::instance();
    const auto await_arrival = [&] {
        const auto end = Clock::now() + k_arrives_within;
        while (gate.releasable() == 0 && Clock::now() < end) std::this_thread::sleep_for(k_look);
    };
    for (bool has_released = true; has_released && count > 0; --count) {
        if (!keeps_going()) return withdrawn();
        await_arrival();
        const auto start = Clock::now();
        has_released = gate.release_oldest();
        GPU_SLEEP_TRY(gate.wait_empty(deadline_, keeps_coaxing(has_released)));
        GPU_SLEEP_TRY(drain());
        if (Clock::now() - start > k_waits_for_others || start >= deadline_) break;
    }
    await_arrival(); // so that it is said at once whether something is held
    return {};
}

Result<void> shut_gate_to_wake(const server::ProgressSink& progress, Clock::time_point deadline) {
    auto& gate = gate::Gate::instance();
    if (gate.phase() == gate::Gate::Phase::open) return {};
    const log::Step step("shut the gate");
    const auto keep_going = [&] { return progress({Progress::Phase::drain, 0, 0}); };
    // Only a checked gate has let any work in that may wait for more, and may let more through.
    bool has_released = false;
    return gate.close(deadline, gate.is_checked() ? coaxing(keep_going, has_released) : keep_going);
}

} // namespace gpu_sleep::agent::operations
