// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The file behind a command: finding it as a shell does, and checking whether the agent can be loaded into
// it. Starts nothing.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace gpu_sleep::cli {

/// Exit statuses of a command that starts another one, as shells use them.
inline constexpr int k_status_cannot_execute = 126;
inline constexpr int k_status_not_found = 127;

/// Why a command is not started.
struct Refusal {
    int exit_status = 0;
    std::string message;
};

/// The file that the command `name` stands for: itself if it has a slash, or else the first executable file
/// of that name in the directories of `search_path`, which are separated by colons (an empty one is the
/// working directory).
[[nodiscard]] std::variant<std::string, Refusal> find_program(const std::string& name,
                                                              std::string_view search_path);

/// Why the dynamic loader would not load the agent into the program in `file`, or nothing. A script is
/// followed to its interpreter. A file that cannot be read is accepted.
[[nodiscard]] std::optional<Refusal> check_preloadable(const std::string& file);

} // namespace gpu_sleep::cli
