// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The path of the agent, and the environment variables that make the loader load it. Changes nothing.

#pragma once

#include "base/error.hpp"

#include <string>
#include <string_view>

namespace gpu_sleep::cli {

/// The agent that belongs to the program in `directory`: in the directory for libraries beside it. Errors:
/// io_failed (it is not there), invalid_argument (the loader could not be given this path: see ld.so(8),
/// LD_PRELOAD).
[[nodiscard]] Result<std::string> find_agent(const std::string& directory);

/// The same for the library of `gpu-run --audit`; see ld.so(8), LD_AUDIT.
[[nodiscard]] Result<std::string> find_audit(const std::string& directory);

/// The same for the library that the login environment preloads, `gpu-enable`. Errors: besides,
/// invalid_argument for what a shell cannot be given.
[[nodiscard]] Result<std::string> find_login(const std::string& directory);

/// Whether the programs of every user can load `library`, by its path's permissions. Errors:
/// invalid_argument, which names what others may not read.
[[nodiscard]] Result<void> check_open_to_all(const std::string& library);

/// LD_AUDIT with `audit` first and whatever else `before` holds, as with_agent().
[[nodiscard]] std::string with_audit(const std::string& audit, std::string_view before);

/// LD_PRELOAD with `agent` first and whatever else `before` holds; an agent that is there already, this or
/// another, or what loads it in a login environment, is not there twice.
[[nodiscard]] std::string with_agent(const std::string& agent, std::string_view before);

/// LD_PRELOAD without the agent and without what loads it in a login environment; may be empty.
[[nodiscard]] std::string without_agent(std::string_view before);

} // namespace gpu_sleep::cli
