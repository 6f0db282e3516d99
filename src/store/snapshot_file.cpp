// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One snapshot's file: made, locked, named, found again, removed.

#include "store/snapshot_file.hpp"

#include <atomic>
#include <cstdio>

namespace gpu_sleep::store {

Result<SnapshotFile> SnapshotFile::create(std::shared_ptr<const SnapshotDirectory> directory,
                                          ProcessIdentity owner, bool direct) {
    static std::atomic<std::uint64_t> next{1};
    constexpr int k_flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    constexpr int k_tries = 1000; // a process in another container may have the same pid and start time
    const auto boot = boot_id();
    const auto its_pids = pid_namespace();
    const auto at = directory->fd();
    for (int i = 0; i < k_tries; ++i) {
        SnapshotName name{owner, next++, SnapshotName::Kind::partial, boot, its_pids};
        auto text = name.text();
        // A final name is taken as well if somebody has it: renaming must not replace.
        const auto is_taken = [&](SnapshotName::Kind kind) {
            const SnapshotName final_name{owner, name.number, kind, boot, its_pids};
            return ::faccessat(at, final_name.text().c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
        };
        if (is_taken(SnapshotName::Kind::sleeping) || is_taken(SnapshotName::Kind::kept)) continue;
        UnsharedFd fd(UniqueFd(open_file(at, text.c_str(), k_flags, S_IRUSR | S_IWUSR)));
        if (!fd && errno == EEXIST) continue;
        if (!fd) return file_error(errno, "openat", directory->path() / text);
        const auto lock = fd.lock();
        const int status = errno;
        // Where there are no locks for anybody, nobody takes it for a leftover either.
        if (lock != UnsharedFd::Lock::taken && !has_no_locks(fd.get(), status)) {
            if (fd.is_named(at, text.c_str())) ::unlinkat(at, text.c_str(), 0);
            if (lock == UnsharedFd::Lock::held)
                continue; // looked at, as a leftover, in the moment before it was locked
            return file_error(status, "flock", directory->path() / text);
        }
        if (!fd.is_named(at, text.c_str())) continue; // and removed
        if (lock == UnsharedFd::Lock::taken && !fd.is_anchored() && lock_lasts(fd.get())) {
            // Without its lock, were the program to close it, it would be taken for a leftover.
            ::unlinkat(at, text.c_str(), 0);
            return make_error(ErrorCode::out_of_host_memory, "no memory is left to map a page of {}",
                              (directory->path() / text).string());
        }
        if (direct) use_direct_io(fd.get());
        return SnapshotFile(std::move(directory), std::move(name), std::move(text),
                            std::move(fd)); // no memory
    }
    return make_error(ErrorCode::io_failed, "no name for a snapshot is free in {}",
                      directory->path().string());
}

bool use_direct_io(int fd) noexcept {
    if (lies_in_memory(fd)) return false; // these accept it and copy all the same
    const int flags = ::fcntl(fd, F_GETFL);
    return flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

bool uses_direct_io(int fd) noexcept {
    const int flags = ::fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0;
}

Result<void> SnapshotFile::check_held() const {
    if (fd_.is_held()) return {};
    return make_error(ErrorCode::io_failed, "the program has closed {}", path().string());
}

Result<void> SnapshotFile::hold() {
    if (fd_.is_held()) return {};
    auto fd = GPU_SLEEP_TRY(open_by_name(*directory_));
    fd_.renew(std::move(fd));
    return {};
}

Result<LockedFile> SnapshotFile::open_by_name(const SnapshotDirectory& directory) const {
    const auto path = directory.path() / text_;
    const auto at = directory.fd();
    if (at < 0 || !fd_.is_named(at, text_.c_str()))
        return make_error(ErrorCode::io_failed,
                          "the program has closed {}, which was then moved or removed: put it back",
                          path.string());
    auto fd = LockedFile::find(at, text_.c_str());
    struct stat status = {};
    if (!fd || ::fstat(fd.get(), &status) != 0) return file_error(errno, "openat", path);
    if (fd.identity() != fd_.identity() || !S_ISREG(status.st_mode) || !is_private(status))
        return refused(path, "it belongs to somebody else now, or others can read it; chmod 600 it");
    // Mostly it is locked still. Somebody who looks for leftovers may have it locked for a moment, and lets
    // it be.
    static_cast<void>(fd.lock());
    use_direct_io(fd.get());
    return fd;
}

Result<SnapshotFile::Stamp> SnapshotFile::stamp_of(int fd, const SnapshotDirectory& directory) {
    struct stat status = {};
    if (::fstat(fd, &status) != 0) return file_error(errno, "fstat", directory.path());
    const auto time_of = [](const timespec& time) { return std::pair(time.tv_sec, time.tv_nsec); };
    return Stamp{directory.identity(), status.st_size, time_of(status.st_mtim), time_of(status.st_ctim)};
}

Result<void> SnapshotFile::leave() {
    if (as_left_) return {};
    GPU_SLEEP_TRY(check_held());
    as_left_ = GPU_SLEEP_TRY(stamp_of(fd_.get(), *directory_));
    fd_.reset();
    directory_.reset();
    return {};
}

Result<void> SnapshotFile::take_up(const std::shared_ptr<const SnapshotDirectory>& directory) {
    if (!as_left_) return {};
    auto fd = GPU_SLEEP_TRY(open_by_name(*directory));
    const auto stamp = GPU_SLEEP_TRY(stamp_of(fd.get(), *directory));
    if (stamp != *as_left_)
        return make_error(ErrorCode::io_failed, "{} was changed in the meantime",
                          (directory->path() / text_).string());
    fd_ = UnsharedFd(std::move(fd));
    directory_ = directory;
    as_left_.reset();
    return {};
}

Result<void> SnapshotFile::rename(SnapshotName::Kind kind) {
    auto renamed = name_;
    renamed.kind = kind;
    auto to = renamed.text();
    const auto at = directory_->fd();
    if (!fd_.is_named(at, text_.c_str())) {
        if (errno == EACCES) return file_error(EACCES, "rename", path());
        return make_error(ErrorCode::io_failed, "{} was removed or replaced by somebody", path().string());
    }
    // Not every file system can refuse to replace; nobody else makes names of this owner.
    if (::renameat2(at, text_.c_str(), at, to.c_str(), RENAME_NOREPLACE) != 0 &&
        (!knows_no_such_call(errno) || ::renameat(at, text_.c_str(), at, to.c_str()) != 0))
        return file_error(errno, "rename", path());
    name_ = std::move(renamed);
    text_ = std::move(to);
    return {};
}

bool SnapshotFile::reserve(Bytes begin, Bytes end) noexcept {
    if (!fd_.is_held() || !uses_direct_io(fd_.get())) return false;
    const auto from = static_cast<off_t>(begin);
    if (::fallocate(fd_.get(), 0, from, static_cast<off_t>(end - begin)) == 0) return true;
    [[maybe_unused]] const int cut = ::ftruncate(fd_.get(), from); // part of it may have been there
    return false;
}

Result<void> SnapshotFile::cut(Bytes bytes) {
    GPU_SLEEP_TRY(check_held());
    if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) return file_error(errno, "ftruncate", path());
    return {};
}

Result<void> SnapshotFile::commit() {
    GPU_SLEEP_TRY(check_held());
    if (::fsync(fd_.get()) != 0) return file_error(errno, "fsync", path());
    GPU_SLEEP_TRY(rename(SnapshotName::Kind::sleeping));
    return directory_->flush();
}

void SnapshotFile::unlink() noexcept {
    // Only while the name is that of this file.
    if (!fd_) return;
    const auto at = directory_->fd();
    if (fd_.is_named(at, text_.c_str())) ::unlinkat(at, text_.c_str(), 0);
}

bool SnapshotFile::is_out_of_reach() const noexcept {
    struct stat status = {};
    if (!fd_.is_held() || ::fstat(fd_.get(), &status) != 0 || status.st_nlink != 1) return false;
    return ::faccessat(directory_->fd(), ".", W_OK | X_OK, AT_EACCESS) != 0 &&
           (errno == EACCES || errno == EPERM);
}

SnapshotFile::~SnapshotFile() {
    unlink();
    if (is_out_of_reach()) {
        [[maybe_unused]] const int emptied = ::ftruncate(fd_.get(), 0);
    }
}

} // namespace gpu_sleep::store
