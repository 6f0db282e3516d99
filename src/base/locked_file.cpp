// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Opening such files, and the three kinds of locks.

#include "base/locked_file.hpp"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace gpu_sleep {
namespace {

constexpr int k_file_flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

struct flock part(short type, off_t start, off_t bytes) noexcept {
    struct flock lock = {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = start;
    lock.l_len = bytes;
    return lock;
}

LockedFile::Lock outcome(int status) noexcept {
    if (status == 0) return LockedFile::Lock::taken;
    const bool is_held = errno == EWOULDBLOCK || errno == EACCES;
    return is_held ? LockedFile::Lock::held : LockedFile::Lock::failed;
}

int set(int file, LockedFile::Holder holder, struct flock lock) noexcept {
    const int command = holder == LockedFile::Holder::process ? F_SETLK : F_OFD_SETLK;
    int status = 0;
    while ((status = ::fcntl(file, command, &lock)) != 0 && errno == EINTR) {
    }
    return status;
}

} // namespace

Result<LockedFile> LockedFile::open(int directory, const std::string& name) {
    constexpr int k_flags = O_RDWR | k_file_flags;
    constexpr mode_t k_mode = S_IRUSR | S_IWUSR;
    const auto failed = [&](const char* call) {
        return errno_error(ErrorCode::io_failed, errno, call, name);
    };
    struct stat owner = {};
    if (::fstat(directory, &owner) != 0) return failed("fstat");
    UniqueFd file;
    do {
        file = open_file(directory, name.c_str(), k_flags);
        if (file || errno != ENOENT) break;
        // It is given away only if nobody has linked another one there meanwhile.
        file = open_file(directory, name.c_str(), k_flags | O_CREAT | O_EXCL, k_mode);
        if (file && owner.st_uid != ::geteuid() && ::fchown(file.get(), owner.st_uid, owner.st_gid) != 0)
            return failed("fchown");
    } while (!file && errno == EEXIST);
    if (!file) return failed("open");
    struct stat status = {};
    if (::fstat(file.get(), &status) != 0) return failed("fstat");
    if (!S_ISREG(status.st_mode) || status.st_uid != owner.st_uid || status.st_nlink > 1)
        return make_error(ErrorCode::io_failed,
                          "{} is not a regular file that belongs to the directory's owner alone", name);
    return LockedFile(std::move(file));
}

LockedFile LockedFile::find(int directory, const char* name) noexcept {
    UniqueFd file(open_file(directory, name, O_RDWR | k_file_flags));
    if (!file && errno == EROFS) file = open_file(directory, name, O_RDONLY | k_file_flags);
    return LockedFile(std::move(file));
}

LockedFile::Lock LockedFile::lock() const noexcept {
    return outcome(::flock(get(), LOCK_EX | LOCK_NB));
}

void LockedFile::unlock() const noexcept {
    ::flock(get(), LOCK_UN);
}

LockedFile::Lock LockedFile::lock(Holder holder, off_t start, off_t bytes) const noexcept {
    return outcome(set(get(), holder, part(F_WRLCK, start, bytes)));
}

LockedFile::Lock LockedFile::share(Holder holder, off_t start, off_t bytes) const noexcept {
    return outcome(set(get(), holder, part(F_RDLCK, start, bytes)));
}

void LockedFile::unlock(Holder holder, off_t start, off_t bytes) const noexcept {
    set(get(), holder, part(F_UNLCK, start, bytes));
}

std::optional<struct flock> LockedFile::find_lock(Holder holder, off_t start, off_t bytes) const noexcept {
    auto lock = part(F_WRLCK, start, bytes);
    const int command = holder == Holder::process ? F_GETLK : F_OFD_GETLK;
    int status = 0;
    while ((status = ::fcntl(get(), command, &lock)) != 0 && errno == EINTR) {
    }
    if (status != 0) return part(F_RDLCK, start, bytes);
    return lock.l_type != F_UNLCK ? std::optional(lock) : std::nullopt;
}

} // namespace gpu_sleep
