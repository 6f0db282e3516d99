// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The directory of snapshots, and their files, which belong to a process and are removed when it ends.

#pragma once

#include "base/process.hpp"
#include "base/units.hpp"
#include "store/own_file.hpp"

#include <system_error>

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
    /// Opens `path`, made with mode 0700 if it is missing. Errors: not_permitted (a symbolic link, by way
    /// of a link that find_place() does not follow, somebody else's, or open to others), io_failed.
    [[nodiscard]] static Result<std::shared_ptr<const SnapshotDirectory>>
    open(const std::filesystem::path& path);

    struct FreeSpace {
        Bytes bytes = 0;        ///< that files could take now, as far as their file system says
        bool in_memory = false; ///< they lie in host memory (tmpfs, ramfs), which may have less
    };
    /// The free space in `path` or, if it is missing, in the directory that it would be made in. Makes
    /// nothing. Errors: as for open().
    [[nodiscard]] static Result<FreeSpace> free_space_in(const std::filesystem::path& path);

    /// A descriptor of it, for as long as this lives.
    struct Opened {
        UniqueFd anew; ///< if it is not the directory's own
        int number = -1;
        operator int() const noexcept { return number; }
    };
    /// Its own. If the program has closed that, opens the directory again, provided that the same directory
    /// is still at its path and still private; otherwise -1.
    [[nodiscard]] Opened fd() const noexcept;
    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
    /// By which it is known again once it was closed, whatever its path is then.
    [[nodiscard]] FileIdentity identity() const noexcept { return fd_.identity(); }
    /// Whether its files lie in host memory (tmpfs, ramfs).
    [[nodiscard]] bool is_in_memory() const noexcept { return lies_in_memory(fd()); }
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
    [[nodiscard]] bool is_leftover(const SnapshotName& name, LockedFile& locked) const;
    [[nodiscard]] bool is_doubtful(const SnapshotName& name) const;

    UnsharedFd fd_;
    std::filesystem::path path_;
    std::filesystem::path whole_path_; ///< because the program may change its working directory
};

/// Opens a snapshot for reading: a plain file, no symbolic link, of the calling user unless that is root,
/// and by way of no link that find_place() does not follow. Errors: not_permitted, io_failed.
[[nodiscard]] Result<UniqueFd> open_snapshot(const std::filesystem::path& path);

} // namespace gpu_sleep::store
