// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Outcomes as a person wants to read them. Text in, text out: nothing is printed here.

#pragma once

#include "cli/targets.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::cli {

/// What a sleep or a wake did, or would do: a line, a table of devices, and what else is worth knowing.
[[nodiscard]] std::string render_operation(const Process& process, const model::Report& report);

/// The listing of gpu-ps: for each process a line, and one for each of its tags on each device.
[[nodiscard]] std::string render_listing(const std::vector<Outcome>& outcomes);

/// The line for standard error when a request failed: "PROGRAM: cannot PURPOSE: REASON; ADVICE\n". `purpose`
/// names the process, such as "wake 4242 (python3 serve.py)"; empty when there was no process to speak of,
/// and the line then begins with the reason. `has_waited`: see advice_from().
[[nodiscard]] std::string render_error(std::string_view program, std::string_view purpose, const Error& error,
                                       bool has_waited = false);

/// `error` for a sentence that names `subject` already, as title() names a process, or a file: "it" in its
/// place.
[[nodiscard]] Error without(const std::string& subject, Error error);

} // namespace gpu_sleep::cli
