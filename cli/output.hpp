// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Results on standard output. What is lost on the way there is not lost silently.

#pragma once

#include "base/result.hpp"

#include <string_view>

namespace gpu_sleep::cli {

/// Writes all of `text` to standard output. Errors: io_failed.
[[nodiscard]] Result<void> write_result(std::string_view text);

/// The same, for a command whose result is its job: says on standard error what is wrong. Returns the status
/// to exit with.
[[nodiscard]] int print_result(std::string_view program, std::string_view text);

} // namespace gpu_sleep::cli
