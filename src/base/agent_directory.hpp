// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The directories in which agents listen, as agents and commands find them in a /tmp that everybody writes
// to.

#pragma once

#include "base/fd.hpp"
#include "base/result.hpp"

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace gpu_sleep {

/// How many entries of a /tmp, and of the directories of one user in it, anybody looks at: others may fill
/// them.
inline constexpr std::size_t k_most_entries = 65'536;

/// What a look into a /tmp has found.
struct AgentDirectories {
    /// Of directories that are named as agents', by owner: only that one may enter them, and none is a link.
    /// Each list is ordered, so that a user's processes agree upon the first.
    std::map<uid_t, std::vector<std::string>> names;
    bool is_whole = true; ///< false where there were more than k_most_entries
};

/// Looks into the directory `tmp`, and opens nothing in it. Errors: io_failed (it cannot be read).
[[nodiscard]] Result<AgentDirectories> find_agent_directories(int tmp);

/// The names in `directory`, at most `most`. Errors: io_failed (it cannot be read).
[[nodiscard]] Result<std::vector<std::string>> names_in(int directory, std::size_t most);

/// Opens the directory `name` in `tmp`, if it is `owner`'s alone and no link. Empty, with errno, if it cannot
/// be opened; with EPERM if it is not so.
[[nodiscard]] UniqueFd open_private_directory(int tmp, const std::string& name, uid_t owner) noexcept;

} // namespace gpu_sleep
