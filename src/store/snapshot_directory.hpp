// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The directory of snapshots, and their files, which belong to a process and are removed when it ends.

#pragma once

#include "base/fd.hpp"
#include "base/process.hpp"
#include "base/result.hpp"
#include "base/units.hpp"
#include "store/unshared_fd.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace gpu_sleep::store {

/// "gpu-sleep-PID-STARTTIME-NUMBER-BOOT-NAMESPACE" and an ending.
struct SnapshotName {
    ProcessIdentity owner;
    std::uint64_t number = 0; ///< one of the owner's
    /// Of a sleeping process; still being written; kept on request, also after its process has ended.
    enum class Kind { sleeping, partial, kept } kind = Kind::sleeping;
    /// The owner's machine, as boot_id() has it; without its part of the name if it is not known.
    std::string boot{};
    /// The owner's pid namespace, as pid_namespace() has it; 0, and missing in the name, if it is not known.
    /// Without a boot it means nothing.
    std::uint64_t pid_namespace = 0;

    [[nodiscard]] std::string text() const;
    /// Nothing for any other name.
    [[nodiscard]] static std::optional<SnapshotName> parse(std::string_view text);
    friend bool operator==(const SnapshotName&, const SnapshotName&) = default;
};

enum class Owner {
    alive,
    ended,
    elsewhere, ///< perhaps alive on another machine: the file system may be shared, and its boot is another
    unseen,    ///< perhaps alive in another pid namespace of this machine
};

/// Whether the owner of a snapshot is alive, as far as this process can see. `fd` is open in the snapshot's
/// file system.
[[nodiscard]] Owner look_for_owner(const SnapshotName& name, int fd);

enum class LockState {
    held,     ///< by some process, wherever that is
    unlocked, ///< nobody can wake from it, even if its owner is alive: it now runs another program
    unknown,  ///< locks may be lost on that file system, or the file cannot be opened
};

/// The state of the lock of the snapshot `name` in `directory`.
[[nodiscard]] LockState lock_state_of(const SnapshotName& name, int directory);

/// A directory that belongs to the calling user alone. Thread-safe.
class SnapshotDirectory {
public:
    /// Opens `path`, made with mode 0700 if it is missing. Errors: not_permitted (a symbolic link, somebody
    /// else's, or open to others), io_failed.
    [[nodiscard]] static Result<std::shared_ptr<const SnapshotDirectory>>
    open(const std::filesystem::path& path);

    struct FreeSpace {
        Bytes bytes = 0;        ///< that files could take now, as far as their file system says
        bool in_memory = false; ///< they lie in host memory (tmpfs, ramfs), which may have less
    };
    /// The free space in `path` or, if it is missing, in the directory that it would be made in. Makes
    /// nothing. Errors: as for open().
    [[nodiscard]] static Result<FreeSpace> free_space_in(const std::filesystem::path& path);

    /// Its descriptor. If the program has closed that, opens the directory again into `anew`, provided that
    /// the same directory is still at its path and still private; otherwise -1.
    [[nodiscard]] int fd(UniqueFd& anew) const noexcept;
    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
    /// Whether its files lie in host memory (tmpfs, ramfs).
    [[nodiscard]] bool is_in_memory() const noexcept;
    /// Flushes changes of names to the disk. Errors: io_failed.
    [[nodiscard]] Result<void> flush() const;

    /// Snapshots that nobody needs any more, because no process has them open and locked. The lock decides,
    /// not the pid: containers that share a directory see different pids, and an owner may run another
    /// program by now (exec). A killed process may keep its lock a moment longer, while the kernel ends its
    /// writes. Where locks may be lost, as on a file system that another machine may share, the owner must
    /// also be seen to have ended, from its own pid namespace. Kept snapshots, and those of other machines,
    /// are no leftovers. Errors: io_failed.
    [[nodiscard]] Result<std::vector<SnapshotName>> leftovers() const;
    /// Snapshots that may be leftovers: nobody has them locked, but it is not known whether their owners have
    /// ended (Owner::elsewhere, or Owner::unseen where locks may be lost). Also those of ended owners on a
    /// file system without locks. Errors: io_failed.
    [[nodiscard]] Result<std::vector<SnapshotName>> doubtful() const;
    /// Removes them. Returns those that it removed. Errors: io_failed.
    [[nodiscard]] Result<std::vector<SnapshotName>> remove_leftovers() const;

private:
    SnapshotDirectory(UniqueFd fd, std::filesystem::path path) : fd_(std::move(fd)), path_(std::move(path)) {
        std::error_code none; // then the path must do as it is
        whole_path_ = std::filesystem::absolute(path_, none);
        if (none) whole_path_ = path_;
    }
    /// Whether it is a leftover; then it stays locked until `locked` is destroyed.
    [[nodiscard]] bool is_leftover(const SnapshotName& name, UniqueFd& locked) const;
    [[nodiscard]] bool is_doubtful(const SnapshotName& name) const;

    UnsharedFd fd_;
    std::filesystem::path path_;
    std::filesystem::path whole_path_; ///< because the program may change its working directory
};

/// A snapshot's file in a directory, open and locked; removed when destroyed, unless let_stay() was called.
/// Move-only.
class SnapshotFile {
public:
    /// Makes an empty one under a partial name, with mode 0600. `direct` asks for O_DIRECT, which some file
    /// systems do not have. Errors: not_permitted, out_of_disk, io_failed.
    [[nodiscard]] static Result<SnapshotFile> create(std::shared_ptr<const SnapshotDirectory> directory,
                                                     ProcessIdentity owner, bool direct);

    SnapshotFile(SnapshotFile&& other) noexcept = default;
    SnapshotFile& operator=(SnapshotFile&& other) noexcept;
    ~SnapshotFile() { remove(); }

    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
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
    [[nodiscard]] Result<void> open_anew();
    void remove() noexcept;

    std::shared_ptr<const SnapshotDirectory> directory_;
    SnapshotName name_;
    std::string text_; ///< of the name: it is removed though there be no memory to make it
    UnsharedFd fd_;    ///< empty once it was let stay, or moved from
};

/// Makes `fd` use direct I/O (O_DIRECT) from here on, in whole pages from and to whole pages of memory.
/// Returns false if the file system cannot.
bool use_direct_io(int fd) noexcept;
[[nodiscard]] bool uses_direct_io(int fd) noexcept;

/// Opens a snapshot for reading: a plain file, no symbolic link, of the calling user unless that is root.
/// Errors: not_permitted, io_failed.
[[nodiscard]] Result<UniqueFd> open_snapshot(const std::filesystem::path& path);

} // namespace gpu_sleep::store
