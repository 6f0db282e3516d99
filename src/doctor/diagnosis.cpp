// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding, asking and judging.

#include "doctor/diagnosis.hpp"

#include "base/text.hpp"
#include "model/environment.hpp"

#include <sstream>

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

/// The agent's variables in the process's environment. The value is shown if it is of a variable that names
/// nothing, and has the form that this variable has; else "set".
std::vector<std::string> settings_of(const control::Finder& finder, pid_t pid) {
    namespace its = model::environment;
    constexpr auto k_shown = std::to_array<std::string_view>(
        {its::k_capture, its::k_min_size, its::k_on_touch, its::k_touch_limit, its::k_make_room,
         its::k_min_awake, its::k_release_gil, its::k_log, its::k_journal, its::k_gate, its::k_retain,
         its::k_prepare, its::k_host_budget, its::k_inhibit, its::k_idle, its::k_idle_deep, its::k_on_stop,
         its::k_stop_grace, its::k_disable});
    constexpr std::array<std::string_view, 11> k_words{
        "wait", "wake", "fail", "shut", "checked", "error", "warning", "info", "debug", "sleep", "stop"};
    std::vector<std::string> settings;
    std::istringstream all(read_small_file(finder.proc().directory(pid) / "environ").value_or(""));
    for (std::string entry; std::getline(all, entry, '\0');) {
        const auto name = entry.substr(0, entry.find('='));
        const auto value = entry.substr(std::min(name.size() + 1, entry.size()));
        if (!name.starts_with("GPU_SLEEP_")) continue;
        const bool names_nothing =
            std::ranges::find(k_shown, name) != k_shown.end() &&
            (parse_number<std::uint64_t>(value) || std::ranges::find(k_words, value) != k_words.end());
        settings.push_back(fmt::format("{}={}", name, names_nothing ? value : "set"));
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
