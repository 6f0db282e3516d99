// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What keeps processes of this machine, or some of them, from sleeping. Changes nothing, and wakes nobody.

#pragma once

#include "doctor/facts.hpp"
#include "doctor/finding.hpp"

#include <optional>
#include <string>
#include <vector>

namespace gpu_sleep::doctor {

struct ProcessDiagnosis {
    control::Process process;
    Findings findings;
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
