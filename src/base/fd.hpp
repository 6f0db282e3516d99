// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Owned file descriptors.

#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <utility>

namespace gpu_sleep {

/// Owns a file descriptor and closes it. Move-only; -1 is empty.
class UniqueFd {
public:
    UniqueFd() noexcept = default;
    explicit UniqueFd(int fd) noexcept : fd_(fd) {}
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
        fd_ = fd;
    }

private:
    int fd_ = -1;
};

/// Which file something is, by whatever name and descriptor. All of it is async-signal-safe.
struct FileIdentity {
    dev_t device = 0;
    ino_t inode = 0;
    /// Of what `fd` means. Empty where that is nothing; for -1, with errno as it was.
    [[nodiscard]] static std::optional<FileIdentity> of(int fd) noexcept {
        struct stat status = {};
        if (fd < 0 || ::fstat(fd, &status) != 0) return std::nullopt;
        return FileIdentity{status.st_dev, status.st_ino};
    }
    /// Of what has this name in `directory`, links not followed.
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
    HeldFile(HeldFile&& other) noexcept = default;
    HeldFile& operator=(HeldFile&& other) noexcept {
        if (this == &other) return *this;
        let_go();
        fd_ = std::move(other.fd_);
        identity_ = other.identity_;
        return *this;
    }
    ~HeldFile() { let_go(); }

    [[nodiscard]] int get() const noexcept { return fd_.get(); }
    /// Not empty, whatever has become of the number.
    [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
    /// Of the file that was given.
    [[nodiscard]] FileIdentity identity() const noexcept { return identity_; }
    /// Whether the number still means that file. Async-signal-safe.
    [[nodiscard]] bool is_held() const noexcept { return FileIdentity::of(fd_.get()) == identity_; }
    /// Whether `name` in `directory` is that file's.
    [[nodiscard]] bool is_named(int directory, const char* name) const noexcept {
        return FileIdentity::of(directory, name) == identity_;
    }

protected:
    /// Empties it, and closes nothing.
    void abandon() noexcept { static_cast<void>(fd_.release()); }

private:
    /// Of a number that is the program's: it is not to be closed.
    void let_go() noexcept {
        if (!is_held()) abandon();
    }

    UniqueFd fd_;
    FileIdentity identity_;
};

} // namespace gpu_sleep
