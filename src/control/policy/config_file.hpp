// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Configuration files in TOML: gpu-sleep.toml(5). Reading them, and deciding which to trust.

#pragma once

#include "base/fd.hpp"
#include "control/policy/policy.hpp"

#include <sys/types.h>

#include <filesystem>

namespace gpu_sleep::control::policy {

inline constexpr const char* k_system_file = "/etc/gpu-sleep.toml";

/// Reads the text of a configuration. `name` is what messages call it; `has_directory`: the administrator's
/// file names one for the ladders of a user's that lead to files. Errors: invalid_argument (the file, the
/// line and the key; so far as it is TOML); unsupported (this build has no parser for TOML).
[[nodiscard]] Result<Configuration> parse_configuration(std::string_view text, std::string_view name,
                                                        Author author, bool has_directory = false);

/// The same, of a file that belongs to `owner` (this process's user's may be root's, too), and that nobody
/// else can write to; nothing if it does not exist. Opens nothing but plain files. Errors: not_permitted
/// (somebody else could have written it), io_failed, those of parse_configuration().
[[nodiscard]] Result<std::optional<Configuration>>
read_configuration(const std::filesystem::path& path, Author author, uid_t owner, bool has_directory = false);

/// Opens a file for reading, once it is known to be a plain one that only `owner` may write to, or root. One
/// of another user's must be that user's own: a link of theirs may lead to root's. Errors: not_permitted,
/// io_failed.
[[nodiscard]] Result<UniqueFd> open_trusted(const std::filesystem::path& path, uid_t owner);

/// Opens a program to be run (O_PATH), which only root or `owner` could have put there: nobody else owns it
/// or a folder above it, or may write to one. Errors: not_permitted (names what is wrong), io_failed.
[[nodiscard]] Result<UniqueFd> open_trusted_program(const std::filesystem::path& path, uid_t owner);

/// Where the user's own file is: of this process's user as its environment says, of others beneath their home
/// directory. Empty if that is not known. May ask the network.
[[nodiscard]] std::filesystem::path user_file(uid_t user);

} // namespace gpu_sleep::control::policy
