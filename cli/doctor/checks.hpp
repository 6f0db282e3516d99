// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The checks of gpu-doctor: pure functions from what was read to what it means, in two tables.

#pragma once

#include "cli/doctor/facts.hpp"
#include "cli/doctor/finding.hpp"

#include <span>

namespace gpu_sleep::cli::doctor {

struct MachineCheck {
    std::string_view id;
    std::string_view subject;
    Findings (*judge)(const MachineFacts&); ///< nothing where there is nothing to say
};

struct ProcessCheck {
    std::string_view id;
    std::string_view subject;
    Findings (*judge)(const MachineFacts&, const ProcessFacts&);
};

/// In the order in which they are shown; the first that is bad is the command's exit status.
[[nodiscard]] std::span<const MachineCheck> machine_checks() noexcept;
[[nodiscard]] std::span<const ProcessCheck> process_checks() noexcept;

/// The findings of all checks, each with its check's id and subject.
[[nodiscard]] Findings judge(const MachineFacts& machine);
[[nodiscard]] Findings judge(const MachineFacts& machine, const ProcessFacts& process);

/// What crosses the link of the slowest GPU in a second: as measured, or else by its generation and width.
/// Nothing where neither is known.
struct LinkRate {
    double bytes_per_second = 0;
    bool is_measured = false;
};
[[nodiscard]] std::optional<LinkRate> link_rate(const MachineFacts& machine);

/// What a link of PCIe does at best, in bytes a second; 0 for one that is not known.
[[nodiscard]] double pcie_bytes_per_second(int generation, int width) noexcept;

} // namespace gpu_sleep::cli::doctor
