// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What to do about an error, where it depends on the command that met it.

#pragma once

#include "base/error.hpp"

#include <string_view>

namespace gpu_sleep::cli {

/// One line for the person who ran `program`; may be empty. That of the table of errors, unless it makes no
/// sense there. `has_waited`: it was told to try again while GPU memory is short, and did.
[[nodiscard]] std::string_view advice_from(std::string_view program, ErrorCode code,
                                           bool has_waited = false) noexcept;

} // namespace gpu_sleep::cli
