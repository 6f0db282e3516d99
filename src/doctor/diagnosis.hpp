// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finds what keeps processes of this machine, or some of them, from sleeping. Two tables of checks, which are
// pure functions from what was read to findings, and a diagnosis by all of them. Changes nothing, and wakes
// nobody.

#pragma once

#include "doctor/facts.hpp"

namespace gpu_sleep::doctor {

enum class Level : std::uint8_t {
    ok,
    warn, ///< it works, with less than there could be
    bad,  ///< processes, or this one, cannot be put to sleep and woken
};

struct Finding {
    Level level = Level::ok;
    std::string text;           ///< what was found, in a few words
    std::string advice;         ///< what to do; may be empty
    int exit_status = 0;        ///< of the command for this alone; not 0 if and only if it is bad
    std::string_view id{};      ///< the check's, in JSON; static
    std::string_view subject{}; ///< the same for people
};

using Findings = std::vector<Finding>;

[[nodiscard]] inline Finding ok(std::string text) {
    return {Level::ok, std::move(text), {}, exit_status::done};
}
[[nodiscard]] inline Finding warn(std::string text, std::string advice) {
    return {Level::warn, std::move(text), std::move(advice), exit_status::done};
}
[[nodiscard]] inline Finding bad(std::string text, std::string advice,
                                 int status = exit_status::failed_awake) {
    return {Level::bad, std::move(text), std::move(advice), status};
}

/// The first of those of `findings` that are bad; 0 if none is.
[[nodiscard]] inline int exit_status_of(const Findings& findings) noexcept {
    for (const auto& finding : findings)
        if (finding.exit_status != exit_status::done) return finding.exit_status;
    return exit_status::done;
}

template <class... Facts>
struct Check {
    std::string_view id;
    std::string_view subject;
    Findings (*judge)(const Facts&...); ///< nothing where there is nothing to say
};
using MachineCheck = Check<MachineFacts>;
using ProcessCheck = Check<MachineFacts, ProcessFacts>;

/// The findings of `checks`, each with its check's id and subject.
template <class... Facts>
[[nodiscard]] Findings findings_of(std::span<const Check<Facts...>> checks, const Facts&... facts) {
    Findings all;
    for (const auto& check : checks)
        for (auto& finding : check.judge(facts...)) {
            finding.id = check.id;
            finding.subject = check.subject;
            all.push_back(std::move(finding));
        }
    return all;
}

/// In the order in which they are shown; the first that is bad is the command's exit status.
[[nodiscard]] std::span<const MachineCheck> machine_checks() noexcept;
[[nodiscard]] std::span<const ProcessCheck> process_checks() noexcept;

/// The findings of all checks.
[[nodiscard]] inline Findings judge(const MachineFacts& machine) {
    return findings_of(machine_checks(), machine);
}
[[nodiscard]] inline Findings judge(const MachineFacts& machine, const ProcessFacts& process) {
    return findings_of(process_checks(), machine, process);
}

/// How much crosses the link of the slowest GPU in a second: as measured, or else by its generation and
/// width. Empty if neither is known.
struct LinkRate {
    double bytes_per_second = 0;
    bool is_measured = false;
};
[[nodiscard]] std::optional<LinkRate> link_rate(const MachineFacts& machine);

/// Returns the peak rate of a PCIe link in bytes a second, or 0 if the link is not known.
[[nodiscard]] double pcie_bytes_per_second(int generation, int width) noexcept;

struct ProcessDiagnosis {
    control::Process process;
    Findings findings;
    client::Answer status{}; ///< of its agent
    /// GPU_SLEEP_* variables that it was started with, each with its value if that is a number or one of our
    /// own words, or else with "set".
    std::vector<std::string> settings{};
};

struct Diagnosis {
    Findings machine;
    std::vector<ProcessDiagnosis> processes;
};

/// The first status that is not 0: of the machine, then of each process.
[[nodiscard]] int exit_status_of(const Diagnosis& diagnosis) noexcept;

/// Examines the machine, and the processes that `target` stands for, a pid or a name; none if it is empty.
/// Errors: those of find_targets().
[[nodiscard]] Result<Diagnosis> diagnose(const std::string& target, std::optional<uid_t> user,
                                         const MachineQuestions& questions, const AskApart& apart);

} // namespace gpu_sleep::doctor
