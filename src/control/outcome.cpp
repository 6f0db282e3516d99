// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What failures mean to whoever asked.

#include "control/outcome.hpp"

#include "base/exit_status.hpp"

#include <algorithm>

namespace gpu_sleep::control {
namespace {

/// Whether it is the rehearsal of a wake that would fail for want of GPU memory, for agents without
/// refusal_code.
bool would_lack_memory(const model::Report& report) noexcept {
    return report.dry_run && report.operation == model::Operation::wake && !report.refusal.empty() &&
           std::any_of(report.devices.begin(), report.devices.end(), [](const auto& device) {
               return device.total != 0 && device.released > device.free_before;
           });
}

} // namespace

Bytes unreleased_by(const protocol::Request& request, const model::Report& report) noexcept {
    const auto* const sleep = model::sleep_in(request);
    if (!sleep || sleep->level == model::Level::pause || report.dry_run) return 0;
    if (report.deep) return 0; // the driver's part frees it all the same
    const bool may_not_come = sleep->min_awake || std::holds_alternative<model::IdleSleepRequest>(request);
    return may_not_come && !report.changed ? 0 : report.unreleased_bytes;
}

bool is_gone(ErrorCode code) noexcept {
    return code == ErrorCode::no_process || code == ErrorCode::no_agent;
}

bool is_passed_over(const Outcome& outcome) noexcept {
    const auto* const error = peers::error_of(outcome.answer);
    return error && (is_gone(error->code) || error->code == ErrorCode::unknown_tag);
}

bool is_withdrawn(const Outcome& outcome) noexcept {
    const auto* const error = peers::error_of(outcome.answer);
    return error && error->code == ErrorCode::cancelled;
}

void drop_ended(std::vector<Outcome>& outcomes) {
    std::erase_if(outcomes, [](const Outcome& outcome) {
        const auto* error = std::get_if<Error>(&outcome.answer);
        return error && is_gone(error->code);
    });
}

const char* silence(const Outcome& outcome) noexcept {
    const auto* const error = peers::error_of(outcome.answer);
    return error && error->code == ErrorCode::stopped ? "stopped" : "no answer";
}

int exit_status_of(const Outcome& outcome) noexcept {
    if (const auto* failure = std::get_if<model::Failure>(&outcome.answer))
        return model::exit_status_of(*failure, outcome.asked);
    if (const auto* error = std::get_if<Error>(&outcome.answer)) return traits(error->code).exit_status;
    const auto& report = std::get<model::Report>(outcome.answer);
    if (report.refusal_code) // what it rehearses would fail
        return model::exit_status_of({make_error(*report.refusal_code, ""), report.state}, report.operation);
    if (would_lack_memory(report)) return traits(ErrorCode::out_of_device_memory).exit_status_asleep;
    return outcome.unreleased != 0 ? exit_status::failed_asleep : exit_status::done;
}

int exit_status_of(const std::vector<Outcome>& outcomes) noexcept {
    int status = exit_status::done;
    int withdrawn = exit_status::done;
    for (const auto& outcome : outcomes) {
        auto& worst = is_withdrawn(outcome) ? withdrawn : status;
        worst = worse_of(worst, exit_status_of(outcome));
    }
    return status == exit_status::done ? withdrawn : status;
}

} // namespace gpu_sleep::control
