// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An owned file descriptor that children of fork() do not keep. Internal to this room, but for
// close_unshared_fds().

#pragma once

#include "base/fd.hpp"

#include <utility>

namespace gpu_sleep::store {

/// Owns a descriptor, and notes it for close_unshared_fds(). Close-on-exec is not enough: a child that goes
/// on in the same program would hold the file's space and its lock long after the parent has let go of both.
/// Move-only; empty when moved from. Thread-safe as far as different ones go. A fork in the very moment
/// between open() and the note, or where no memory is left for one, leaves the child its copy.
class UnsharedFd {
public:
    UnsharedFd() noexcept = default;
    explicit UnsharedFd(UniqueFd fd) noexcept;
    UnsharedFd(UnsharedFd&& other) noexcept
        : fd_(std::move(other.fd_)), note_(std::exchange(other.note_, nullptr)) {}
    UnsharedFd& operator=(UnsharedFd&& other) noexcept;
    ~UnsharedFd() { reset(); }

    [[nodiscard]] int get() const noexcept { return fd_.get(); }
    [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
    void reset() noexcept;

private:
    friend void close_unshared_fds() noexcept;
    struct Note;

    UniqueFd fd_;
    Note* note_ = nullptr;
};

/// Closes the parent's in a child of fork(), which has no other thread yet. Their owners in its copy of the
/// memory must not be used any more. Async-signal-safe.
void close_unshared_fds() noexcept;

} // namespace gpu_sleep::store
