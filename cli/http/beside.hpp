// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Starting a door beside a program that this process is about to become.

#pragma once

#include "base/error.hpp"

#include <string>
#include <vector>

namespace gpu_sleep::cli::http {

/// Starts `words`, the door's file and its arguments, and waits until it listens. It lives until this
/// process, whatever that executes, has ended, and is started again if it ends before. It is neither a child
/// that an ordinary wait() finds, nor an orphan that a program which is the first process or a subreaper
/// would be given. Not while other threads run. Errors: io_failed (it cannot be started, or has
/// failed), invalid_argument (its address is wrong or taken); the door has said on standard error why.
[[nodiscard]] Result<void> start_beside(std::vector<std::string> words);

} // namespace gpu_sleep::cli::http
