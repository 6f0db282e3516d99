// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Checks of files and directories before the store uses them. Internal to this module.

#pragma once

#include "base/files.hpp"

namespace gpu_sleep::store {

/// not_permitted, for `why`.
[[nodiscard]] Error refused(const std::filesystem::path& path, std::string_view why);

/// Whether the errno `number` means that the file system does not support the call or its flags.
[[nodiscard]] bool knows_no_such_call(int number) noexcept;

/// Whether it belongs to this user and is closed to all others.
[[nodiscard]] bool is_private(const struct stat& status) noexcept;

/// Whether the file system of `fd`, which refused a lock with `error`, does not support locks.
[[nodiscard]] bool has_no_locks(int fd, int error) noexcept;

/// Whether the file system of `fd` stores files in host memory only.
[[nodiscard]] bool lies_in_memory(int fd) noexcept;

/// Whether another machine may share the file system of `fd`.
[[nodiscard]] bool may_be_shared(int fd) noexcept;

/// Whether a lock lasts as long as a page of the file is mapped, even if all descriptors are closed, so that
/// it shows whether somebody needs the file. Not if another machine may share the file system, because a lock
/// may be lost; nor on overlayfs, where a mapping only keeps the file of the lower layer open.
[[nodiscard]] bool lock_lasts(int fd) noexcept;

} // namespace gpu_sleep::store
