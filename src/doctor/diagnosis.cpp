// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding, asking and judging.

#include "doctor/diagnosis.hpp"

#include "base/error.hpp"
#include "base/text.hpp"
#include "model/environment.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace gpu_sleep::doctor {
namespace {

/// Returns the processes to examine, each with its agent's status or why there is none.
Result<std::vector<control::Outcome>> find(control::Finder& finder, const std::string& target,
                                           std::optional<uid_t> user, Milliseconds timeout) {
    if (target.empty()) return std::vector<control::Outcome>();
    auto targets = control::find_targets(finder, target, {user, true, timeout});
    if (targets) return control::ask_each(finder, *std::move(targets), model::StatusRequest(), timeout);
    const auto found = control::find_process_without_agent(finder, target, user);
    if (!found) return targets.error();
    return std::vector{control::Outcome{*found, targets.error()}}; // the kernel tells of it all the same
}

std::vector<std::string> settings_of(const control::Finder& finder, pid_t pid) {
    namespace environment = model::environment;
    constexpr std::array k_variables{
        environment::k_capture,    environment::k_name,           environment::k_group,
        environment::k_tag,        environment::k_min_size,       environment::k_rules,
        environment::k_on_touch,   environment::k_touch_limit,    environment::k_make_room,
        environment::k_min_awake,  environment::k_release_gil,    environment::k_log,
        environment::k_journal,    environment::k_gate,           environment::k_retain,
        environment::k_prepare,    environment::k_host_budget,    environment::k_live_bytes,
        environment::k_inhibit,    environment::k_idle,           environment::k_idle_deep,
        environment::k_idle_store, environment::k_idle_directory, environment::k_on_stop,
        environment::k_stop_grace, environment::k_disable};
    constexpr std::array<std::string_view, 11> k_words{
        "wait", "wake", "fail", "shut", "checked", "error", "warning", "info", "debug", "sleep", "stop"};
    std::vector<std::string> settings;
    for (const auto* const variable : k_variables) {
        const auto value = finder.proc().variable(pid, variable);
        if (!value) continue;
        const bool names_nothing = variable != environment::k_tag && // it may be a number
                                   (parse_number<std::uint64_t>(*value) ||
                                    std::find(k_words.begin(), k_words.end(), *value) != k_words.end());
        settings.push_back(fmt::format("{}={}", variable, names_nothing ? *value : "set"));
    }
    return settings;
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
        auto process = examine_process(finder, std::move(outcome), questions.timeout, apart);
        auto findings = judge(machine, process);
        auto settings = settings_of(finder, process.process.pid);
        diagnosis.processes.push_back(
            {process.process, std::move(findings), std::move(process.status), std::move(settings)});
    }
    return diagnosis;
}

} // namespace gpu_sleep::doctor
