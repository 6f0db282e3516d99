// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The directories with the sockets of agents, and how agents and commands find them in /tmp, which everybody
// can write to.

#pragma once

#include "base/fd.hpp"
#include "base/result.hpp"

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace gpu_sleep {

/// The limit of entries that are read of /tmp, and of each user's directories in it: others may fill them.
inline constexpr std::size_t k_max_entries = 65'536;

/// The agents' directories in a /tmp.
struct AgentDirectories {
    /// The names of the agents' directories, by owner. Only the owner may enter them, and none is a link.
    /// Each list is sorted, so that all processes of a user choose the same first one.
    std::map<uid_t, std::vector<std::string>> names;
    bool is_whole = true; ///< false where there were more than k_max_entries
};

/// Reads the directory `tmp`, and opens nothing in it. Errors: io_failed (it cannot be read).
[[nodiscard]] Result<AgentDirectories> find_agent_directories(int tmp);

/// The names in `directory`, at most `most`. Errors: io_failed (it cannot be read).
[[nodiscard]] Result<std::vector<std::string>> names_in(int directory, std::size_t most);

/// Opens the directory `name` in `tmp`, if only `owner` may enter it and it is not a link. Returns an empty
/// descriptor and sets errno if it cannot be opened; EPERM if it is not private.
[[nodiscard]] UniqueFd open_private_directory(int tmp, const std::string& name, uid_t owner) noexcept;

} // namespace gpu_sleep
