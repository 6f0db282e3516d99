// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Files that processes lock to agree with each other: whose turn it is, what each of them holds, what one has
// noted for the next.

#pragma once

#include "base/fd.hpp"
#include "base/result.hpp"

#include <fcntl.h>

#include <optional>
#include <string>

namespace gpu_sleep {

/// A file, and the locks of it that this process has. Versions of the tool run side by side on one machine:
/// the names of such files, what is in them, and which lock of which kind stands for what stay as they are.
///
/// Locks are advisory, and the owner of a file can hold any of them for ever or write what he likes: whoever
/// reads it, as root does, checks the form, believes nothing that would harm others, and waits with a
/// deadline. A process can be killed between two writes, so a reader needs a sign that what it reads is
/// whole. Nothing here waits. Move-only; not thread-safe.
class LockedFile : public HeldFile {
public:
    /// Whose a lock of a part is. A process's is not its child's by fork(), and ends with the process or as
    /// soon as that closes any descriptor of the file (F_SETLK). A descriptor's ends with the last copy of
    /// it and the last mapping that was made by it; on overlayfs no mapping holds it (F_OFD_SETLK). Source:
    /// fcntl(2).
    enum class Holder { process, descriptor };
    enum class Lock {
        taken,
        held,  ///< by another
        failed ///< errno says why
    };

    LockedFile() noexcept = default;
    explicit LockedFile(UniqueFd fd) noexcept : HeldFile(std::move(fd)) {}
    /// The plain file `name` of a directory that its owner alone may enter, to read and write. It is made,
    /// with mode 0600, if it is missing: for the owner of the directory, whoever makes it. Errors: io_failed
    /// (also: it is a link, somebody else's, or has another name).
    [[nodiscard]] static Result<LockedFile> open(int directory, const std::string& name);
    /// What has that name in `directory` and is no link, unchecked. Writable if it can be: some file systems
    /// lock only such. Empty, with errno set, if it cannot be opened.
    [[nodiscard]] static LockedFile find(int directory, const char* name) noexcept;

    /// Locks the whole file: a lock of the descriptor and its copies, which meets no lock of a part. Source:
    /// flock(2).
    [[nodiscard]] Lock lock() const noexcept;
    void unlock() const noexcept;
    /// Locks `bytes` from `start`, which need not exist; 0: all from there.
    [[nodiscard]] Lock lock(Holder holder, off_t start, off_t bytes) const noexcept;
    /// As lock(), but others can share it. Of who has the part locked, others can share it from then on.
    [[nodiscard]] Lock share(Holder holder, off_t start, off_t bytes) const noexcept;
    void unlock(Holder holder, off_t start, off_t bytes) const noexcept;
    /// Some lock of another holder's in that part, or nothing. One of all of it, shared and by nobody, where
    /// the file system does not say: who takes that for free may count on what another has.
    [[nodiscard]] std::optional<struct flock> find_lock(Holder holder, off_t start,
                                                        off_t bytes) const noexcept;
};

} // namespace gpu_sleep
