// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The checks: pure functions from what was read to what it means, in two tables.

#pragma once

#include "doctor/facts.hpp"
#include "doctor/finding.hpp"

#include <span>

namespace gpu_sleep::doctor {

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

/// What crosses the link of the slowest GPU in a second: as measured, or else by its generation and width.
/// Nothing where neither is known.
struct LinkRate {
    double bytes_per_second = 0;
    bool is_measured = false;
};
[[nodiscard]] std::optional<LinkRate> link_rate(const MachineFacts& machine);

/// What a link of PCIe does at best, in bytes a second; 0 for one that is not known.
[[nodiscard]] double pcie_bytes_per_second(int generation, int width) noexcept;

} // namespace gpu_sleep::doctor
