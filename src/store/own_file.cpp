// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Owners, modes and file systems.

#include "store/own_file.hpp"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>

namespace gpu_sleep::store {
namespace {

/// File systems that one machine alone has at a time. Any other may be shared.
constexpr std::array<std::uint32_t, 12> k_of_one_machine = {
    EXT4_SUPER_MAGIC,     XFS_SUPER_MAGIC,      BTRFS_SUPER_MAGIC,
    TMPFS_MAGIC,          RAMFS_MAGIC,          OVERLAYFS_SUPER_MAGIC,
    F2FS_SUPER_MAGIC,     0x2FC12FC1 /* ZFS */, 0xCA451A4E /* bcachefs */,
    0x3153464A /* JFS */, MSDOS_SUPER_MAGIC,    EXFAT_SUPER_MAGIC};

/// Null where it cannot be told.
std::uint32_t kind_of_system(int fd) noexcept {
    struct statfs system = {};
    return ::fstatfs(fd, &system) == 0 ? static_cast<std::uint32_t>(system.f_type) : 0;
}

} // namespace

Error refused(const std::filesystem::path& path, std::string_view why) {
    return make_error(ErrorCode::not_permitted, "{} is not used: {}", path.string(), why);
}

bool knows_no_such_call(int number) noexcept {
    return number == EINVAL || number == ENOSYS || number == EOPNOTSUPP;
}

bool is_private(const struct stat& status) noexcept {
    return status.st_uid == ::geteuid() && (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

bool lies_in_memory(int fd) noexcept {
    const auto kind = kind_of_system(fd);
    return kind == TMPFS_MAGIC || kind == RAMFS_MAGIC;
}

bool may_be_shared(int fd) noexcept {
    return std::find(k_of_one_machine.begin(), k_of_one_machine.end(), kind_of_system(fd)) ==
           k_of_one_machine.end();
}

bool lock_lasts(int fd) noexcept {
    return !may_be_shared(fd) && kind_of_system(fd) != OVERLAYFS_SUPER_MAGIC;
}

bool has_no_locks(int fd, int error) noexcept {
    // The last is NFS without its lock manager; elsewhere it is the kernel that lacks memory.
    return knows_no_such_call(error) || (error == ENOLCK && may_be_shared(fd));
}

} // namespace gpu_sleep::store
