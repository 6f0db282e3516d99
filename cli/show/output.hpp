// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The output of the commands: results on standard output, errors on standard error. A result that cannot be
// written is an error. All text is made safe for a terminal, because it may come from other users.

#pragma once

#include "base/error.hpp"

#include <cstddef>

namespace gpu_sleep::cli {

/// Writes all of printable_lines(text) to standard output. Errors: io_failed.
[[nodiscard]] Result<void> write_result(std::string_view text);

/// The same, and reports a failure on standard error. Returns the exit status: `status`, or if all else is
/// done that of the failure.
[[nodiscard]] int print_result(std::string_view program, std::string_view text,
                               int status = exit_status::done);

/// Writes printable_lines(text) to standard error. Ignores failures.
void print_error(std::string_view text);

/// Of a terminal.
struct ScreenSize {
    std::size_t lines = 0;
    std::size_t columns = 0;
};

/// Writes as much of printable_lines(text) as fits to the terminal that is standard output, in place of what
/// it shows, at once and without clearing it before. Errors: io_failed.
[[nodiscard]] Result<void> draw(std::string_view text, ScreenSize size);

} // namespace gpu_sleep::cli
