// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Shutting, waiting.

#include "operations/quiesce.hpp"

#include "common/interception.hpp"
#include "intercepted/pending_work.hpp"
#include "intercepted/virtual_memory.hpp"
#include "interpreter_lock/python_lock.hpp"
#include "registry/registry.hpp"
#include "sharing/sharing.hpp"

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

Result<void> Quiesce::end_captures() {
    constexpr Milliseconds k_look{1};
    // A capture must not meet a closed gate, and waiting for the device would break it: no new ones begin,
    // and those under way go on until they end.
    gate::Gate::instance().hold_captures();
    while (registry::books().captures.count() != 0) {
        if (const auto spans = registry::books().captures.wait_for()) {
            const auto tags = ground_.memory.tags_at(*spans);
            const auto what = tags.empty() ? std::string("memory") : fmt::format("{}", fmt::join(tags, ", "));
            return make_error(ErrorCode::capture_in_progress,
                              "the capture of a CUDA graph waits for {}, which sleeps: wake it first", what);
        }
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
    auto& gate = gate::Gate::instance();
    const auto keep_going = [this] { return keeps_going(); };
    // Looking symbols up takes the loader's lock, which a thread that a closed gate holds may have.
    if (gate::Gate::is_open()) interpreter_lock::find_python(gate.loader_lock());
    for (bool has_trimmed = !trims;;) {
        GPU_SLEEP_TRY(end_captures());
        // PyTorch could not unmap blocks of its own that sleep, and would be left in disorder.
        if (!std::exchange(has_trimmed, true) && !intercepted::own_mappings_sleep())
            GPU_SLEEP_TRY(torch_trim_->run(deadline_, keep_going));
        bool has_released = false;
        GPU_SLEEP_TRY(gate.close(deadline_, keeps_coaxing(has_released)));
        if (registry::books().captures.count() == 0) return {};
        ground_.settle_gate(); // one began just before: let it end
    }
}

Result<void> Quiesce::drain() {
    const auto& api = ground_.memory.api();
    const auto contexts = GPU_SLEEP_TRY(driver::active_contexts(api));
    const auto all = intercepted::all_contexts(contexts);
    for (bool has_released = true; has_released;) {
        has_released = false;
        GPU_SLEEP_TRY(driver::drain(api, all, {deadline_, deadline_, keeps_coaxing(has_released)}));
        if (has_released)
            GPU_SLEEP_TRY(gate::Gate::instance().wait_empty(deadline_, keeps_coaxing(has_released)));
    }
    return {};
}

Result<void> Quiesce::await_others() {
    const auto held = [this] {
        ground_.giving_back.while_waiting();
        return intercepts() ? gate::Gate::instance().releasable() : 0;
    };
    for (;;) {
        if (ground_.memory.shared_ranges().party() != 0) sharing::prepare_imports(ground_.memory);
        if (!joint_.is_joint()) return {};
        const auto said = GPU_SLEEP_TRY(joint_.wait_drained(held));
        if (said.kind == model::Directive::Kind::prepare) return {};
        GPU_SLEEP_TRY(let_through(said.count));
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

bool pause_would_hold_work(const LockedMemory& locked) noexcept {
    const auto state = locked.state();
    const bool is_any_awake = state == model::State::awake || state == model::State::partial;
    return !locked.is_paused() && (is_any_awake || gate::Gate::instance().is_checked());
}

Result<void> shut_gate_to_wake(const server::ProgressSink& progress, Clock::time_point deadline) {
    auto& gate = gate::Gate::instance();
    if (gate.phase() == gate::Gate::Phase::open) return {};
    const auto keep_going = [&] { return progress({Progress::Phase::drain, 0, 0}); };
    // Only a checked gate has let any work in that may wait for more, and may let more through.
    bool has_released = false;
    return gate.close(deadline, gate.is_checked() ? coaxing(keep_going, has_released) : keep_going);
}

} // namespace gpu_sleep::agent::operations
