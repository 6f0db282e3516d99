// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What files and directories are checked for before they are used, and what the errors of their system calls
// mean. Internal to this module.

#pragma once

#include "base/result.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <string_view>

namespace gpu_sleep::store {

/// not_permitted, for `why`.
[[nodiscard]] Error refused(const std::filesystem::path& path, std::string_view why);

/// What `call` on `path` that set errno to `number` comes to: not_permitted, out_of_disk, io_failed.
[[nodiscard]] Error failed(int number, std::string_view call, const std::filesystem::path& path);

/// Whether errno was set to `number` by a file system that does not have the call, or not with such flags.
[[nodiscard]] bool knows_no_such_call(int number) noexcept;

/// Whether it is this user's, and nobody else may do anything with it.
[[nodiscard]] bool is_private(const struct stat& status) noexcept;

/// Whether the file system of `fd`, which refused a lock with `error`, has none for anybody.
[[nodiscard]] bool has_no_locks(int fd, int error) noexcept;

/// Whether the files in whose file system `fd` is open lie in host memory, and nowhere else.
[[nodiscard]] bool lies_in_memory(int fd) noexcept;

/// Whether another machine, too, may have the file system in which `fd` is open.
[[nodiscard]] bool may_be_shared(int fd) noexcept;

/// Whether a file's lock there tells who needs it: it lasts as long as a page of the file is mapped, whatever
/// descriptors are closed. Not where another machine may have the file system, for a lock may be lost; nor on
/// overlayfs, where a mapping keeps only the file of the layer below open.
[[nodiscard]] bool lock_lasts(int fd) noexcept;

} // namespace gpu_sleep::store
