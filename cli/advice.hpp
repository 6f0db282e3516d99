// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What to do about an error, where it depends on the command that met it.

#pragma once

#include "base/error.hpp"

#include <string_view>

namespace gpu_sleep::cli {

/// One line for the person who ran `program`; may be empty. That of the table of errors, unless it makes no
/// sense there.
[[nodiscard]] std::string_view advice_from(std::string_view program, ErrorCode code) noexcept;

} // namespace gpu_sleep::cli
