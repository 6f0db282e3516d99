// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding, asking and judging.

#include "doctor/diagnosis.hpp"

#include "base/error.hpp"

#include <utility>

namespace gpu_sleep::doctor {
namespace {

/// Those that are to be examined, each with its agent's status or why there is none.
Result<std::vector<control::Outcome>> find(control::Finder& finder, const std::string& target,
                                           std::optional<uid_t> user, Milliseconds timeout) {
    if (target.empty()) return std::vector<control::Outcome>();
    auto targets = control::find_targets(finder, target, {user, true, timeout});
    if (targets) return control::ask_each(finder, *std::move(targets), model::StatusRequest(), timeout);
    const auto found = control::find_process_without_agent(finder, target, user);
    if (!found) return targets.error();
    return std::vector{control::Outcome{*found, targets.error()}}; // the kernel tells of it all the same
}

} // namespace

int exit_status_of(const Diagnosis& diagnosis) noexcept {
    int status = exit_status_of(diagnosis.machine);
    for (const auto& process : diagnosis.processes)
        if (status == exit_status::done) status = exit_status_of(process.findings);
    return status;
}

Result<Diagnosis> diagnose(const std::string& target, std::optional<uid_t> user,
                           const MachineQuestions& questions, const AskApart& apart) {
    control::Finder finder;
    auto outcomes = GPU_SLEEP_TRY(find(finder, target, user, questions.timeout));
    const auto machine = examine_machine(questions, apart);
    Diagnosis diagnosis{judge(machine), {}};
    for (auto& outcome : outcomes) {
        const auto process = examine_process(finder, std::move(outcome), questions.timeout, apart);
        diagnosis.processes.push_back({process.process, judge(machine, process)});
    }
    return diagnosis;
}

} // namespace gpu_sleep::doctor
