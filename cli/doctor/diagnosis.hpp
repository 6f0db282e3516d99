// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The findings of gpu-doctor as text and as JSON. Nothing is printed here.

#pragma once

#include "cli/doctor/finding.hpp"
#include "cli/process_info.hpp"

#include <string>
#include <vector>

namespace gpu_sleep::cli::doctor {

struct ProcessDiagnosis {
    Process process;
    Findings findings;
};

struct Diagnosis {
    Findings machine;
    std::vector<ProcessDiagnosis> processes;
};

/// The first status that is not 0: of the machine, then of each process.
[[nodiscard]] int exit_status_of(const Diagnosis& diagnosis) noexcept;

/// Lines "ok|warn|bad  SUBJECT: FINDING; ADVICE", the findings below each other. The subjects of a process
/// begin with its pid. `bad_only` leaves the others out.
[[nodiscard]] std::string render(const Diagnosis& diagnosis, bool bad_only);

/// The document, which man/gpu-doctor.1 describes.
[[nodiscard]] std::string to_json(const Diagnosis& diagnosis);

} // namespace gpu_sleep::cli::doctor
