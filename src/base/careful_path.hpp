// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Walking to a file directory by directory, past no link that somebody else could have made: the kernel's own
// protection (fs.protected_symlinks) may be off.

#pragma once

#include "base/fd.hpp"
#include "base/result.hpp"

#include <filesystem>
#include <string>

namespace gpu_sleep {

/// A name in its directory, which is open, though not to be read or flushed (O_PATH).
struct CarefulPlace {
    UniqueFd directory;
    std::string name; ///< "." if the path names a directory in another way
};

enum class LastLink {
    followed,
    kept ///< where the last name is a link's, that is the place
};

/// Where `file` really lies; nothing needs to have its last name. Links are followed that root or this user
/// has made; those by which root himself would go, only where nobody else could have put them. Errors: those
/// of file_error() (ELOOP: a link of somebody else's, or too many), with errno as it was.
[[nodiscard]] Result<CarefulPlace> find_place(const std::filesystem::path& file, LastLink last);

} // namespace gpu_sleep
