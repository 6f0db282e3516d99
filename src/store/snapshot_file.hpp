// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A snapshot's file, which belongs to a process and is removed when it ends.

#pragma once

#include "store/snapshot_directory.hpp"

#include <ctime>

namespace gpu_sleep::store {

/// A snapshot's file in a directory, open and locked; removed when destroyed, unless let_stay() was called.
/// Move-only.
class SnapshotFile {
public:
    /// Makes an empty one under a partial name, with mode 0600. `direct` asks for O_DIRECT, which some file
    /// systems do not have. Errors: not_permitted, out_of_disk, io_failed.
    [[nodiscard]] static Result<SnapshotFile> create(std::shared_ptr<const SnapshotDirectory> directory,
                                                     ProcessIdentity owner, bool direct);

    SnapshotFile(SnapshotFile&& other) noexcept = default;
    SnapshotFile& operator=(SnapshotFile&&) = delete;
    ~SnapshotFile();

    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    [[nodiscard]] FileIdentity identity() const noexcept { return fd_.identity(); }
    /// Checks that fd() still means this file: a program may close descriptors that are not its own, and open
    /// another file with the same number. Errors: io_failed.
    [[nodiscard]] Result<void> check_held() const;
    /// If it does not, opens the file again by its name, and locks it. Errors: not_permitted (it belongs
    /// to somebody else now, or is open to others), io_failed (it has lost its name as well).
    [[nodiscard]] Result<void> hold();
    [[nodiscard]] const SnapshotName& name() const noexcept { return name_; }
    [[nodiscard]] std::filesystem::path path() const { return directory_->path() / text_; }

    /// Allocates disk space from `begin`, behind which nothing was written yet, to `end`: with direct I/O, a
    /// write that makes a file longer blocks all others. Returns false, and leaves the file as it was, if
    /// there is too little space or the file does not use direct I/O.
    [[nodiscard]] bool reserve(Bytes begin, Bytes end) noexcept;
    /// Frees the space that was reserved behind `bytes`. Errors: io_failed.
    [[nodiscard]] Result<void> cut(Bytes bytes);
    /// Flushes the contents to the device, gives the file the name of a whole one, and flushes that. Errors:
    /// out_of_disk, io_failed.
    [[nodiscard]] Result<void> commit();
    /// Renames a complete file so that it is never a leftover; the name is safe once the directory is
    /// flushed. Errors: out_of_disk, io_failed.
    [[nodiscard]] Result<void> keep() { return rename(SnapshotName::Kind::kept); }
    /// Closes it and does not remove it.
    void let_stay() noexcept { fd_.reset(); }
    /// The same, with its directory, and notes how it is left: take_up() alone may be called then. Errors:
    /// io_failed (it is still open).
    [[nodiscard]] Result<void> leave();
    /// Opens and locks it again, if `directory` is its own, and nobody has written to it, renamed or replaced
    /// it since leave(): by its inode, size, and times of change. Errors: io_failed, not_permitted (it is
    /// still left).
    [[nodiscard]] Result<void> take_up(const std::shared_ptr<const SnapshotDirectory>& directory);
    /// Removes its name at once. Its space is freed when this is destroyed, which may take long.
    void unlink() noexcept;
    /// Whether its name cannot be removed, because the process has become another user, who may not change
    /// the directory. Its space is freed anyway, and the next command with permission finds a leftover.
    [[nodiscard]] bool is_out_of_reach() const noexcept;

private:
    SnapshotFile(std::shared_ptr<const SnapshotDirectory> directory, SnapshotName name, std::string text,
                 UnsharedFd fd)
        : directory_(std::move(directory)), name_(std::move(name)), text_(std::move(text)),
          fd_(std::move(fd)) {}
    [[nodiscard]] Result<void> rename(SnapshotName::Kind kind);
    [[nodiscard]] Result<LockedFile> open_by_name(const SnapshotDirectory& directory) const;

    /// What a write changes, and where it is.
    struct Stamp {
        FileIdentity directory;
        off_t bytes = 0;
        std::pair<time_t, long> written; ///< s and ns
        std::pair<time_t, long> changed;
        friend bool operator==(const Stamp&, const Stamp&) = default;
    };
    [[nodiscard]] static Result<Stamp> stamp_of(int fd, const SnapshotDirectory& directory);

    std::shared_ptr<const SnapshotDirectory> directory_;
    SnapshotName name_;
    std::string text_;             ///< of the name: it is removed though there be no memory to make it
    UnsharedFd fd_;                ///< empty once it was let stay or left, or moved from
    std::optional<Stamp> as_left_; ///< while it is left
};

/// Makes `fd` use direct I/O (O_DIRECT) from here on, in whole pages from and to whole pages of memory.
/// Returns false if the file system cannot.
bool use_direct_io(int fd) noexcept;
[[nodiscard]] bool uses_direct_io(int fd) noexcept;

} // namespace gpu_sleep::store
