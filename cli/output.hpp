// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Where text leaves a command: results on standard output, complaints on standard error. What is lost on the
// way is not lost silently, and what strangers have written into it is made safe for a terminal.

#pragma once

#include "base/result.hpp"

#include <string_view>

namespace gpu_sleep::cli {

/// Writes all of printable_lines(text) to standard output. Errors: io_failed.
[[nodiscard]] Result<void> write_result(std::string_view text);

/// The same, for a command whose result is its job: says on standard error what is wrong. Returns the status
/// to exit with.
[[nodiscard]] int print_result(std::string_view program, std::string_view text);

/// Writes printable_lines(text) to standard error, where nothing can be done about a failure.
void print_error(std::string_view text);

/// Wipes the terminal that is standard output, before more of write_result().
void clear_screen();

} // namespace gpu_sleep::cli
