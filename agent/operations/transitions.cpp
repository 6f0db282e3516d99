// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What counts as a transition, and the counts.

#include "operations/transitions.hpp"

#include <algorithm>
#include <variant>

namespace gpu_sleep::agent::operations {
namespace {

using model::Transition;

bool changes_nothing(const server::Operation& operation) noexcept {
    if (const auto* wake = std::get_if<model::WakeRequest>(&operation)) return wake->dry_run;
    const auto& sleep = std::get<model::SleepRequest>(operation);
    return sleep.dry_run || sleep.release_retained;
}

/// A sleep may have set no more than how touches are met.
std::optional<Transition> done_sleep(const model::Report& report) noexcept {
    Bytes slept = 0;
    Bytes moved = 0;
    for (const auto& device : report.devices) {
        slept += device.released + device.kept + device.dropped;
        moved += device.relocated;
    }
    if (slept > 0) return Transition::sleep;
    return moved > 0 ? std::optional(Transition::move) : std::nullopt;
}

} // namespace

std::optional<Transition> transition_of(const server::Operation& operation,
                                        const server::Outcome& outcome) noexcept {
    if (changes_nothing(operation)) return {};
    const bool wakes = std::holds_alternative<model::WakeRequest>(operation);
    if (const auto* report = std::get_if<model::Report>(&outcome)) {
        if (!report->changed) return {};
        return wakes ? Transition::wake : done_sleep(*report);
    }
    if (wakes) return Transition::wake;
    // What was to sleep, and sleeps after a failure, slept before.
    const auto state = std::get<model::Failure>(outcome).state;
    const bool slept = state == model::State::asleep || state == model::State::damaged;
    return slept ? Transition::move : Transition::sleep;
}

void Transitions::count(Transition transition, const server::Outcome& outcome, double seconds) noexcept {
    const MutexLock lock(mutex_);
    auto& counts = counts_[static_cast<std::size_t>(transition)];
    if (const auto* failure = std::get_if<model::Failure>(&outcome)) {
        const auto code = static_cast<std::size_t>(failure->error.code);
        ++counts.failed[code < k_codes ? code : static_cast<std::size_t>(ErrorCode::internal)];
        return;
    }
    const auto bound =
        std::lower_bound(model::k_duration_bounds.begin(), model::k_duration_bounds.end(), seconds);
    ++counts.done[static_cast<std::size_t>(bound - model::k_duration_bounds.begin())];
    counts.done_seconds += seconds;
}

std::vector<model::TransitionCounts> Transitions::counts() const {
    std::vector<model::TransitionCounts> all;
    const MutexLock lock(mutex_);
    for (const auto transition : model::k_transitions) {
        const auto& counts = counts_[static_cast<std::size_t>(transition)];
        model::TransitionCounts row{transition, counts.done, counts.done_seconds, {}};
        for (std::size_t code = 0; code < counts.failed.size(); ++code)
            if (counts.failed[code] != 0)
                row.failed.push_back({static_cast<ErrorCode>(code), counts.failed[code]});
        if (model::done_of(row) != 0 || !row.failed.empty()) all.push_back(std::move(row));
    }
    return all;
}

} // namespace gpu_sleep::agent::operations
