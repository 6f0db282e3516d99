// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A sleep that is only for what is idle: whether the process is, and stays so.

#pragma once

#include "operations/process_status.hpp"

namespace gpu_sleep::agent::operations {

/// Whether a process is idle as a sleep asks for that is only for what is idle, and stays so. Used on the
/// operations thread. All that it is given outlives it.
class Idleness {
public:
    Idleness(ProcessStatus& status, const Turnstile& turnstile, const IdleWatch& watch,
             const Inhibitors& inhibitors, const model::IdleSleepRequest& request)
        : status_(status), turnstile_(turnstile), watch_(watch), inhibitors_(inhibitors), request_(request) {}

    /// Looks whether the process is idle as asked. Returns why it is not to sleep now; empty: it is.
    [[nodiscard]] std::string find() {
        const auto state = status_.state();
        const bool is_asleep = state == model::State::asleep || state == model::State::damaged;
        if (is_asleep && !request_.sleep.store_is_named) return "it is already asleep";
        if (inhibitors_.now() && !request_.sleep.ignore_inhibitors) return "sleeps are inhibited";
        if (is_asleep) {
            const auto now = status_.report();
            if (now.waiting > 0) return "work waits for it to wake";
            // Time asleep counts as idle.
            return why_too_short(std::max(now.idle_seconds.value_or(0), now.state_seconds));
        }
        if (turnstile_.is_held()) return k_held_back;
        const auto idle = watch_.find();
        if (!idle) return "it is not known whether it is idle";
        if (idle->seconds == 0) return "it is not idle";
        auto why = why_too_short(idle->seconds);
        if (why.empty()) idle_ = idle;
        return why;
    }
    /// Whether it sleeps already, and has been idle or asleep for as long as asked: nothing but moves is
    /// done, and whoever wakes meanwhile stays awake.
    [[nodiscard]] bool is_for_moves() const noexcept { return !idle_; }
    /// Whether the program has not worked since, and has no sleeps wait. Always so where only moves are done,
    /// for what moves sleeps on.
    [[nodiscard]] bool lasts(model::Progress::Phase phase) {
        if (!idle_) return true;
        const bool waits = phase == model::Progress::Phase::waiting && turnstile_.is_held();
        is_over_ |= waits || gate::Gate::instance().activity().touches != idle_->touches;
        return !is_over_;
    }
    /// Whether lasts() has ever returned false.
    [[nodiscard]] bool is_over() const noexcept { return is_over_; }

private:
    /// Why `seconds` are too few, or nothing.
    [[nodiscard]] std::string why_too_short(double seconds) const {
        const auto wanted = std::chrono::duration<double>(request_.only_if_idle).count();
        return seconds < wanted ? model::not_yet("idle", seconds, wanted) : std::string();
    }

    ProcessStatus& status_;
    const Turnstile& turnstile_;
    const IdleWatch& watch_;
    const Inhibitors& inhibitors_;
    const model::IdleSleepRequest& request_;
    std::optional<IdleWatch::Idle> idle_; ///< as it was when it was found
    bool is_over_ = false;
};

} // namespace gpu_sleep::agent::operations
