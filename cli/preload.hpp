// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The path of the agent, the environment variables that make the loader load it, and the file that it is
// loaded into. Changes nothing, and starts nothing.

#pragma once

#include "base/error.hpp"

namespace gpu_sleep::cli {

/// The agent, and the library of `gpu-run --audit`; see ld.so(8), LD_AUDIT.
inline constexpr std::string_view k_agent_library = "libgpu-sleep-agent.so";
inline constexpr std::string_view k_audit_library = "libgpu-sleep-audit.so";

/// `library`, which belongs to the program in `directory`: in the directory for libraries beside it. Errors:
/// io_failed (it is not there), invalid_argument (the loader could not be given this path: see ld.so(8),
/// LD_PRELOAD).
[[nodiscard]] Result<std::string> find_library(const std::string& directory, std::string_view library);

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

/// Exit statuses of a command that starts another one, as shells use them.
inline constexpr int k_status_cannot_execute = 126;
inline constexpr int k_status_not_found = 127;

/// Why a command is not started.
struct Refusal {
    int exit_status = 0;
    std::string message;
};

/// The search path where PATH is not set, as execvp() has it.
inline constexpr const char* k_default_path = "/bin:/usr/bin";

/// The file that the command `name` stands for: itself if it has a slash, or else the first executable file
/// of that name in the directories of `search_path`, which are separated by colons (an empty one is the
/// working directory).
[[nodiscard]] std::variant<std::string, Refusal> find_program(const std::string& name,
                                                              std::string_view search_path);

/// Why the dynamic loader would not load the agent into the program in `file`, or nothing. A script is
/// followed to its interpreter. A file that cannot be read is accepted.
[[nodiscard]] std::optional<Refusal> check_preloadable(const std::string& file);

} // namespace gpu_sleep::cli
