// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking the parts of the agent how they stand.

#include "operations/process_status.hpp"

#include "common/interception.hpp"
#include "intercepted/memory.hpp"
#include "sharing/sharing.hpp"
#include "unseen/unseen.hpp"

namespace gpu_sleep::agent::operations {

using model::Report;

namespace {

/// Those that have memory of a tag.
void add_devices(Report& report) {
    std::set<int> devices;
    for (const auto& tag : report.tags) devices.insert(tag.device);
    for (const int device : devices) report.devices.emplace_back().device = device;
}

} // namespace

template <class Use, class Before>
auto ProcessStatus::look(Use&& use, Before&& before) {
    constexpr Milliseconds k_patience{20}; // whoever polls wants an answer at once
    constexpr Milliseconds k_look{1};
    for (const auto deadline = Clock::now() + k_patience;; std::this_thread::sleep_for(k_look)) {
        if (auto seen = memory_.try_with_lock(use)) return *std::move(seen);
        if (Clock::now() < deadline) continue;
        const MutexLock lock(before_mutex_);
        if (before_) return before(*before_); // else somebody allocates
    }
}

Report ProcessStatus::report() {
    std::vector<std::string> notes;
    bool is_unseen = false;
    std::string why_not_deep;
    if (intercepts())
        if (const auto uses = unseen::find_uses(); uses && !uses->empty()) {
            notes.push_back(unseen::words_for(*uses));
            is_unseen = true;
            why_not_deep = model::why_not_restored(*uses);
        }
    auto report = look(
        [&](const LockedMemory& locked) {
            Report now;
            complete(locked, now);
            // What nothing needs any more, too, until it is given back: a moment later.
            if (memory_.is_started()) now.host_bytes += retired_.host_bytes(locked);
            now.notes.insert(now.notes.begin(), notes.begin(), notes.end());
            return now;
        },
        [&](Report before) {
            before.notes = std::move(notes);
            before.notes.emplace_back("contents are being moved; this is the state before");
            return before;
        });
    if (is_unseen) report.idle_seconds.reset(); // it may be at work
    if (!report.deep && report.deep_refusal.empty()) report.deep_refusal = std::move(why_not_deep);
    if (report.on_touch != model::OnTouch::wake || gate::Gate::instance().waiting().held_now == 0)
        return report;
    if (auto trouble = this->notes().touch_trouble; !trouble.empty())
        report.notes.push_back(std::move(trouble));
    return report;
}

model::State ProcessStatus::state() noexcept {
    return look([this](const LockedMemory& locked) { return state_with(locked.state()); },
                [](const Report& before) { return before.state; });
}

void ProcessStatus::complete(const LockedMemory& locked, Report& report) {
    report.pid = ::getpid();
    report.version = GPU_SLEEP_VERSION;
    report.features.assign(model::k_features.begin(), model::k_features.end());
    report.intercepts = intercepts();
    const auto& gate = gate::Gate::instance();
    report.gate = gate.is_open()      ? model::GateState::open
                  : gate.is_checked() ? model::GateState::checked
                                      : model::GateState::shut;
    locked.describe(report);
    report.state = state_with(report.state);
    const auto notes = this->notes();
    report.name = notes.name;
    report.group = notes.group;
    std::tie(report.woken_bytes, report.woken_seconds) = notes.brought_back;
    report.seconds_since_wake = seconds_since_wake();
    const auto waiting = gate.waiting();
    report.waiting = waiting.held_now;
    report.touches = waiting.held_ever;
    report.last_touch = waiting.last;
    report.idle_seconds = idle_.seconds();
    const auto inhibited = inhibitors_.now();
    report.inhibited = inhibited.has_value();
    if (inhibited) report.inhibited_seconds = inhibited->seconds;
    if (!deep_.is_deep())
        for (const auto& row : intercepted::residual(locked))
            report.residual.push_back({row.kind, row.device, row.bytes, row.count, row.reason});
    if (report.operation == model::Operation::status) {
        add_devices(report);
        report.sharers = sharing::sharers(memory_);
    }
    for (auto& device : report.devices) {
        auto known = devices_.find(device.device);
        device.name = std::move(known.name);
        if (device.uuid.empty())
            device.uuid = std::move(known.uuid); // a rehearsed wake may go to another GPU
    }
    deep_.describe(report);
}

} // namespace gpu_sleep::agent::operations
