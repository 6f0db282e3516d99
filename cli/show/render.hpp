// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Outcomes as text for people. Nothing is printed here.

#pragma once

#include "control/outcome.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::cli {

/// What a sleep or a wake did, or would do: a line, a table of devices, and notes. `request`: the sleep that
/// was asked for, if that is known; `is_live`: what was asked for is a move to host memory.
[[nodiscard]] std::string render_operation(const control::Process& process, const model::Report& report,
                                           const model::SleepRequest* request = nullptr,
                                           bool is_live = false);

/// The same where the driver did it, which knows no tags.
[[nodiscard]] std::string render_driver_operation(const control::Process& process,
                                                  const model::Report& report);

/// "80.0 GiB of GPU memory freed in all", where several have done something; else empty.
[[nodiscard]] std::string render_total(const std::vector<control::Outcome>& outcomes);

/// A line that says what has become of all that go together. `sleep` is what was asked, or null for a wake.
[[nodiscard]] std::string render_together(const std::vector<control::Outcome>& outcomes,
                                          const model::SleepRequest* sleep);

/// Whether sleeps of a process are refused: a line.
[[nodiscard]] std::string render_inhibition(const control::Process& process, const model::Report& report);

/// For gpu-reclaim --why: when the process worked last, what a sleep would free, what prevents it, and
/// how long waking would take. `report` is of a dry run.
[[nodiscard]] std::string render_reasons(const control::Process& process, const model::Report& report);

/// How much a listing says of each process.
enum class Detail : std::uint8_t {
    some,
    all, ///< also what it cannot do
};

/// The listing of gpu-ps: for each process a line, and one for each of its tags on each device. `link_rate`:
/// the most that a GPU reads of host memory, in bytes a second; 0: not known.
[[nodiscard]] std::string render_listing(const std::vector<control::Outcome>& outcomes,
                                         Detail detail = Detail::some, double link_rate = 0);

/// The line for standard error when a request failed: "PROGRAM: cannot PURPOSE: REASON; ADVICE\n". `purpose`
/// names the process, such as "wake 4242 (python3 serve.py)"; empty when there was no process to speak of,
/// and the line then begins with the reason. `outcome`: see advice_from().
[[nodiscard]] std::string render_error(std::string_view program, std::string_view purpose, const Error& error,
                                       const control::Outcome* outcome = nullptr);

/// The same of an outcome; empty where it did not fail. `purpose` has "{}" in place of the process.
[[nodiscard]] std::string render_failure(std::string_view program, std::string_view purpose,
                                         const control::Outcome& outcome);

/// `error` with "it" in place of `subject` (a title() or a file), for a sentence that has named it already.
[[nodiscard]] Error without(const std::string& subject, Error error);

} // namespace gpu_sleep::cli
