// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How gpu-doctor asks what may hang or crash, such as a broken driver, and shows what it has found.

#pragma once

#include "doctor/diagnosis.hpp"

namespace gpu_sleep::cli::doctor {

/// What `ask` gives in a child of this process, which ends with it. The child is killed at the limit; one
/// that the kernel does not let go is left behind. Call it while the process has no other thread. Errors:
/// those of `ask`; timed_out; driver_failed (the child has crashed); io_failed, out_of_threads (there is no
/// child).
[[nodiscard]] Result<std::string> run_in_child(Milliseconds limit,
                                               const std::function<Result<std::string>()>& ask);

/// "ok", "warn" or "bad".
[[nodiscard]] std::string_view word_for(gpu_sleep::doctor::Level level) noexcept;

/// Lines "ok|warn|bad  SUBJECT: FINDING; ADVICE", the findings below each other. The subjects of a process
/// begin with its pid. `bad_only` leaves the others out.
[[nodiscard]] std::string render(const gpu_sleep::doctor::Diagnosis& diagnosis, bool bad_only);

/// The document, which man/gpu-doctor.1 describes.
[[nodiscard]] std::string to_json(const gpu_sleep::doctor::Diagnosis& diagnosis);

/// What to attach to a bug report, for people: versions, the kernel, the findings, and how each process
/// stands, its settings, transitions and last steps. Of processes only numbers and words of our own: no name,
/// user, command, path or tag, and no text of an error; tags are counted.
[[nodiscard]] std::string bug_report(const gpu_sleep::doctor::Diagnosis& diagnosis);

} // namespace gpu_sleep::cli::doctor
