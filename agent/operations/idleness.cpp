// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// When a process counts as idle, and why it does not.

#include "operations/idleness.hpp"

#include "gate/gate.hpp"

#include <algorithm>
#include <chrono>

namespace gpu_sleep::agent::operations {

std::string Idleness::why_too_short(double seconds) const {
    const auto wanted = std::chrono::duration<double>(request_.only_if_idle).count();
    return seconds < wanted ? model::not_yet("idle", seconds, wanted) : std::string();
}

std::string Idleness::find_unused() {
    if (parts_.inhibitors.now() && !request_.sleep.ignore_inhibitors) return "sleeps are inhibited";
    const auto now = parts_.status.report();
    if (now.waiting > 0) return "work waits for it to wake";
    // Time asleep counts as idle.
    auto why = why_too_short(std::max(now.idle_seconds.value_or(0), now.state_seconds));
    is_for_moves_ = why.empty();
    return why;
}

std::string Idleness::find() {
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

bool Idleness::lasts(model::Progress::Phase phase) {
    if (!idle_) return true;
    const bool waits = phase == model::Progress::Phase::waiting && parts_.turnstile.is_held();
    is_over_ |= waits || gate::Gate::instance().activity().touches != idle_->touches;
    return !is_over_;
}

} // namespace gpu_sleep::agent::operations
