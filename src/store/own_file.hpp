// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Files of the store: descriptors that children of fork() do not keep and that know when a program has
// closed them, and checks of files and directories before they are used. Internal to this module, but for
// close_unshared_fds().

#pragma once

#include "base/files.hpp"

#include <memory>

namespace gpu_sleep::store {

struct AnchorRelease {
    void operator()(void* page) const noexcept;
};
/// A page of a file that is mapped, and never touched: holds the file, and its locks, as a descriptor does,
/// but nobody closes it by mistake, and children do not get it. Null if it cannot be mapped.
using Anchor = std::unique_ptr<void, AnchorRelease>;
[[nodiscard]] Anchor make_anchor(int fd) noexcept;

/// Owns a descriptor, and notes it for close_unshared_fds(). Close-on-exec is not enough: a child that goes
/// on in the same program would hold the file's space and its lock long after the parent has let go of both.
/// Move-only; empty when moved from. Thread-safe as far as different ones go. If a fork comes between open()
/// and the note, or there is no memory for a note, the child keeps its copy.
/// Programs close descriptors that are not their own, and open others with the same numbers: this neither
/// uses nor closes those. A plain file stays open and locked anyway, until reset(), but on overlayfs.
class UnsharedFd : private LockedFile {
public:
    UnsharedFd() noexcept = default;
    explicit UnsharedFd(UniqueFd fd) noexcept : UnsharedFd(LockedFile(std::move(fd))) {}
    explicit UnsharedFd(LockedFile file) noexcept;
    UnsharedFd(UnsharedFd&& other) noexcept = default;
    UnsharedFd& operator=(UnsharedFd&& other) noexcept = default;
    ~UnsharedFd() { reset(); }

    using HeldFile::get, HeldFile::operator bool, HeldFile::is_held, HeldFile::is_named, HeldFile::identity;
    using LockedFile::lock, LockedFile::unlock, LockedFile::Lock;
    /// Whether it stays open and locked though the program closes the number.
    [[nodiscard]] bool is_anchored() const noexcept { return anchor_ != nullptr; }
    /// Takes another descriptor of the same file in place of one that is not held any more.
    void renew(LockedFile file) noexcept;
    /// Closes it, if it is held.
    void reset() noexcept;

private:
    friend void close_unshared_fds() noexcept;
    struct Note;
    struct NoteRelease {
        void operator()(Note* note) const noexcept;
    };

    Anchor anchor_;
    std::unique_ptr<Note, NoteRelease> note_; ///< until it is closed: a child in between would keep it
};

/// Closes the parent's in a child of fork(), which has no other thread yet. Their owners in its copy of the
/// memory must not be used any more. Async-signal-safe.
void close_unshared_fds() noexcept;

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
