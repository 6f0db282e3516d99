// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The advice for an error, which can depend on the command.

#pragma once

#include "control/outcome.hpp"

#include <string>

namespace gpu_sleep::cli {

/// One line for the person who ran `program`; may be empty. That of the table of errors, unless it does
/// not apply to this command, or to what a process was asked for, `outcome`, null where none was.
[[nodiscard]] std::string advice_from(std::string_view program, ErrorCode code,
                                      const control::Outcome* outcome = nullptr);

} // namespace gpu_sleep::cli
