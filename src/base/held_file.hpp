// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A descriptor that knows when the program has closed it.

#pragma once

#include "base/fd.hpp"

#include <sys/stat.h>

#include <utility>

namespace gpu_sleep {

/// Owns a descriptor that the program may close, for it knows nothing of it, and use the number for a file of
/// its own: that is not ours to use, nor to close. Move-only; empty when moved from.
class HeldFile {
public:
    HeldFile() noexcept = default;
    explicit HeldFile(UniqueFd fd) noexcept : fd_(std::move(fd)) {
        struct stat status = {};
        if (::fstat(fd_.get(), &status) != 0) return;
        device_ = status.st_dev;
        inode_ = status.st_ino;
    }
    HeldFile(HeldFile&& other) noexcept = default;
    HeldFile& operator=(HeldFile&& other) noexcept {
        if (this == &other) return *this;
        let_go();
        fd_ = std::move(other.fd_);
        device_ = other.device_;
        inode_ = other.inode_;
        return *this;
    }
    ~HeldFile() { let_go(); }

    [[nodiscard]] int get() const noexcept { return fd_.get(); }
    /// Whether the number still means the file. Async-signal-safe.
    [[nodiscard]] bool is_held() const noexcept {
        struct stat status = {};
        return ::fstat(fd_.get(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
    }

private:
    /// Of a number that is the program's: it is not to be closed.
    void let_go() noexcept {
        if (!is_held()) static_cast<void>(fd_.release());
    }

    UniqueFd fd_;
    dev_t device_ = 0;
    ino_t inode_ = 0;
};

} // namespace gpu_sleep
