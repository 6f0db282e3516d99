// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Changing files that belong to others: whole or not at all, with the owner and the mode that they had, and
// never by a link that somebody else could have made.

#pragma once

#include "base/error.hpp"

#include <sys/types.h>

#include <filesystem>
#include <vector>

namespace gpu_sleep::cli {

/// What is read is no longer than this.
inline constexpr std::size_t k_max_careful_file_bytes = 1 << 20;

/// The contents of a file, or nothing if there is none. Links are followed as find_place() does. Errors:
/// those of file_error(); invalid_argument: it is no regular file, or too long.
[[nodiscard]] Result<std::optional<std::string>> read_carefully(const std::filesystem::path& file);

/// Gives a file these contents by a new file that takes its name. One that is there keeps its owner and its
/// mode, and a link to it stays; another gets `mode`. Errors: as read_carefully().
[[nodiscard]] Result<void> write_carefully(const std::filesystem::path& file, std::string_view contents,
                                           mode_t mode);

/// Removes a file. One that is not there is no error. Errors: those of file_error().
[[nodiscard]] Result<void> remove_carefully(const std::filesystem::path& file);

/// Who may enter a new directory.
enum class Visitors {
    by_umask,
    all ///< whatever the umask is
};

/// Makes a directory, and those above it that are missing; `made` gets those, in the order of their making.
/// Errors: those of file_error().
[[nodiscard]] Result<void> make_directories(const std::filesystem::path& directory, Visitors visitors,
                                            std::vector<std::filesystem::path>& made);

/// Removes a directory if it is empty.
void remove_if_empty(const std::filesystem::path& directory) noexcept;

} // namespace gpu_sleep::cli
