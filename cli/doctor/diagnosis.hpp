// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The findings of gpu-doctor as text and as JSON. Nothing is printed here.

#pragma once

#include "doctor/diagnosis.hpp"

#include <string>

namespace gpu_sleep::cli::doctor {

/// Lines "ok|warn|bad  SUBJECT: FINDING; ADVICE", the findings below each other. The subjects of a process
/// begin with its pid. `bad_only` leaves the others out.
[[nodiscard]] std::string render(const gpu_sleep::doctor::Diagnosis& diagnosis, bool bad_only);

/// The document, which man/gpu-doctor.1 describes.
[[nodiscard]] std::string to_json(const gpu_sleep::doctor::Diagnosis& diagnosis);

} // namespace gpu_sleep::cli::doctor
