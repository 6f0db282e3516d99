// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How the process stands, for whoever asks, while a transaction runs too.

#include "agent.hpp"
#include "caught/caught.hpp"
#include "hooks/catches.hpp"
#include "unseen.hpp"

#include <unistd.h>

#include <mutex>
#include <thread>
#include <utility>

namespace gpu_sleep::agent {

using model::Report;

Report Agent::status() {
    constexpr Milliseconds k_patience{100};
    constexpr Milliseconds k_look{1};
    Report report;
    if (hooks::catches())
        if (const auto uses = find_unseen_uses(); uses && !uses->empty())
            report.notes.push_back(words_for(*uses));
    std::unique_lock lock(memory_mutex_, std::defer_lock);
    for (const auto deadline = Clock::now() + k_patience; !lock.try_lock();
         std::this_thread::sleep_for(k_look)) {
        if (Clock::now() < deadline) continue;
        // A transaction, which may move contents for a long time. Who asks for the state need not wait for
        // it.
        const std::lock_guard guard(before_mutex_);
        if (!before_) continue; // somebody allocates
        auto before = *before_;
        before.notes = std::move(report.notes);
        before.notes.emplace_back("contents are being moved; this is how it was before");
        note_touch_trouble(before);
        return before;
    }
    complete(report);
    // What nothing needs any more, too, until it is given back: a moment later.
    if (auto* const running = running_.load())
        report.host_bytes += running->engine.contents().retired_bytes() + retired_.held();
    note_touch_trouble(report);
    return report;
}

void Agent::note_touch_trouble(Report& report) {
    if (report.on_touch != model::OnTouch::wake || gate::Gate::instance().waiting().held_now == 0) return;
    const std::lock_guard lock(touch_mutex_);
    if (!touch_trouble_.empty()) report.notes.push_back(touch_trouble_);
}

model::State Agent::state() noexcept {
    constexpr Milliseconds k_patience{100};
    constexpr Milliseconds k_look{1};
    std::unique_lock lock(memory_mutex_, std::defer_lock);
    for (const auto deadline = Clock::now() + k_patience; !lock.try_lock();
         std::this_thread::sleep_for(k_look)) {
        if (Clock::now() < deadline) continue;
        const std::lock_guard guard(before_mutex_);
        if (before_) return before_->state;
    }
    return ledger_.state();
}

void Agent::complete(Report& report) {
    report.pid = ::getpid();
    report.state = ledger_.state();
    report.state_seconds = seconds_since(state_since_);
    report.captures = hooks::catches();
    const auto& gate = gate::Gate::instance();
    report.gate = gate.is_open()      ? model::GateState::open
                  : gate.is_checked() ? model::GateState::checked
                                      : model::GateState::shut;
    // Awake, the rule of the last sleep is over.
    report.on_touch = (report.state == model::State::awake ? default_rule_ : rule_).on_touch;
    auto* running = running_.load();
    if (running) {
        auto& contents = running->engine.contents();
        report.host_bytes = contents.held(model::Store::host);
        report.file_bytes = contents.held(model::Store::file);
        report.tags = ledger_.report(
            [&](contents::Number range) { return contents.bytes_in(model::Store::file, range); });
    } else {
        report.tags = ledger_.report();
    }
    {
        const std::lock_guard lock(name_mutex_);
        report.name = name_;
    }
    auto waiting = gate.waiting();
    report.waiting = waiting.held_now;
    report.touches = waiting.held_ever;
    report.last_touch = std::move(waiting.last);
    if (report.captures)
        for (const auto& row : caught::residual())
            report.residual.push_back({row.kind, row.device, row.bytes, row.count, row.reason});
    if (!running) return;
    for (auto& device : report.devices) {
        char name[256] = {};
        if (running->api.cuDeviceGetName(name, sizeof(name) - 1, device.device) == CUDA_SUCCESS)
            device.name = name;
    }
}

} // namespace gpu_sleep::agent
