// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Owned file descriptors, and their numbers: 0 to 2 are the program's, also where it has closed them.

#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>

namespace gpu_sleep {

/// Above the numbers of standard input, output and error. A program that has closed these goes on writing
/// there, or opens a file and expects one of them.
inline constexpr int k_first_own_number = STDERR_FILENO + 1;

/// Returns `fd`, or, where that is a number of the program's, a copy above, and closes `fd`. -1, with errno
/// set, if no number is left.
[[nodiscard]] inline int moved_up(int fd) noexcept {
    if (fd < 0 || fd >= k_first_own_number) return fd;
    const int above = ::fcntl(fd, F_DUPFD_CLOEXEC, k_first_own_number);
    const int failure = errno;
    ::close(fd);
    errno = failure;
    return above;
}

/// Owns a file descriptor and closes it. Its number is k_first_own_number or above: what has a lower one is
/// moved, close-on-exec, and lost if no number is left. Move-only; -1 is empty.
class UniqueFd {
public:
    UniqueFd() noexcept = default;
    explicit UniqueFd(int fd) noexcept : fd_(moved_up(fd)) {}
    UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
    UniqueFd& operator=(UniqueFd&& other) noexcept {
        if (this != &other) reset(other.release());
        return *this;
    }
    UniqueFd(const UniqueFd&) = delete;
    UniqueFd& operator=(const UniqueFd&) = delete;
    ~UniqueFd() { reset(); }

    [[nodiscard]] int get() const noexcept { return fd_; }
    [[nodiscard]] explicit operator bool() const noexcept { return fd_ >= 0; }
    [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
    void reset(int fd = -1) noexcept {
        if (fd_ >= 0) ::close(fd_);
        fd_ = moved_up(fd);
    }

private:
    int fd_ = -1;
};

/// While one lives, what is opened gets a number above the program's: descriptors of "/" that are for its
/// path alone fill those that are free. For the program these are as good as closed, for reading and writing
/// fail with EBADF. If the file itself were opened there first, and then moved, another thread's line for
/// standard error could get into it in between; and no call but fcntl(F_DUPFD) takes a least number. What the
/// program opens meanwhile gets no number below 3, so one lives as long as the opening takes. Where there is
/// no descriptor left to fill them with, UniqueFd has to do. Thread-safe; leaves errno as it was.
class StandardNumbers {
public:
    StandardNumbers() noexcept;
    StandardNumbers(const StandardNumbers&) = delete;
    StandardNumbers& operator=(const StandardNumbers&) = delete;
    ~StandardNumbers();
    /// Empties what a thread of the parent fills, in a child of fork(). Async-signal-safe.
    static void leave_in_child() noexcept;
};

/// Returns the result of `open`, called while the numbers 0 to 2 are filled; keeps its errno. All files are
/// opened so. To move a file to a higher number afterwards would not do: another thread may have taken the
/// number meanwhile, and frees it.
template <class Open>
[[nodiscard]] UniqueFd opened(Open&& open) noexcept {
    const StandardNumbers filled;
    return UniqueFd(open());
}

/// As openat(2), with the program's numbers filled.
[[nodiscard]] UniqueFd open_file(int directory, const char* path, int flags, mode_t mode = 0) noexcept;

/// Which file something is, by whatever name and descriptor. All of it is async-signal-safe.
struct FileIdentity {
    dev_t device = 0;
    ino_t inode = 0;
    /// Returns the identity of the open file `fd`. Empty if `fd` is not open; for -1, errno stays.
    [[nodiscard]] static std::optional<FileIdentity> of(int fd) noexcept {
        struct stat status = {};
        if (fd < 0 || ::fstat(fd, &status) != 0) return std::nullopt;
        return FileIdentity{status.st_dev, status.st_ino};
    }
    /// Returns the identity of the file `name` in `directory`; does not follow links.
    [[nodiscard]] static std::optional<FileIdentity> of(int directory, const char* name) noexcept {
        struct stat status = {};
        if (::fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
        return FileIdentity{status.st_dev, status.st_ino};
    }
    friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// Owns a descriptor that the program may close, for it knows nothing of it, and use the number for a file of
/// its own: that is not ours to use, nor to close. Move-only; empty when moved from.
class HeldFile {
public:
    HeldFile() noexcept = default;
    explicit HeldFile(UniqueFd fd) noexcept
        : fd_(std::move(fd)), identity_(FileIdentity::of(fd_.get()).value_or(FileIdentity())) {}
    /// Of a file that has its identity in common with others: the kernel gives many that have no name one for
    /// all, such as events, and up to Linux 5.15 io_uring's. It is known by the signal that it would send, if
    /// it sent any: one that nobody uses.
    [[nodiscard]] static HeldFile marked(UniqueFd fd) noexcept {
        HeldFile held(std::move(fd));
        if (::fcntl(held.get(), F_SETSIG, SIGSTKFLT) == 0) held.mark_ = SIGSTKFLT;
        return held;
    }
    HeldFile(HeldFile&& other) noexcept = default;
    HeldFile& operator=(HeldFile&& other) noexcept {
        if (this == &other) return *this;
        let_go();
        fd_ = std::move(other.fd_);
        identity_ = other.identity_;
        mark_ = other.mark_;
        return *this;
    }
    ~HeldFile() { let_go(); }

    [[nodiscard]] int get() const noexcept { return fd_.get(); }
    /// Not empty, whatever has become of the number.
    [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
    /// Returns the identity of the file that was given.
    [[nodiscard]] FileIdentity identity() const noexcept { return identity_; }
    /// Whether the number still means that file, as far as can be known. Async-signal-safe.
    [[nodiscard]] bool is_held() const noexcept {
        if (!fd_) return false;
        const auto now = FileIdentity::of(fd_.get());
        if (!now) return errno != EBADF; // a failing call, or a filter, does not make it another's
        if (mark_ != 0 && ::fcntl(fd_.get(), F_GETSIG) != mark_) return false;
        return now == identity_ || identity_ == FileIdentity();
    }
    /// Whether `name` in `directory` is that file's.
    [[nodiscard]] bool is_named(int directory, const char* name) const noexcept {
        return FileIdentity::of(directory, name) == identity_;
    }

protected:
    /// Empties it, and closes nothing.
    void abandon() noexcept { static_cast<void>(fd_.release()); }

private:
    /// Abandons a number that the program uses for a file of its own: it must not be closed.
    void let_go() noexcept {
        if (!is_held()) abandon();
    }

    UniqueFd fd_;
    FileIdentity identity_;
    int mark_ = 0; ///< 0: none
};

} // namespace gpu_sleep
