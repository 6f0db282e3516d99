// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Files that other processes also use or could tamper with: read as a whole, written whole or not at all,
// locked, kept from children of fork(), and reached past no link that somebody else could have made.

#pragma once

#include "base/error.hpp"
#include "base/fd.hpp"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace gpu_sleep {

/// All of the file, whose descriptor no other program inherits. Nothing, with errno set, if it cannot be
/// opened or read. May throw for want of memory. Thread-safe.
[[nodiscard]] std::optional<std::string> read_small_file(const std::filesystem::path& path);

/// Reads the rest of an open file, up to `most` bytes. Empty, with errno set, if it cannot be read: EFBIG if
/// it has more.
[[nodiscard]] std::optional<std::string> read_open_file(int file, std::size_t most);

/// Takes the first line, without its end, off `text`; nothing once `text` is empty.
[[nodiscard]] std::optional<std::string_view> take_line(std::string_view& text) noexcept;

/// Opens `path` as if the directory `root` were "/": no link in another's file tree leads out of it. Empty,
/// with errno set, if it cannot be opened; ENOSYS or EPERM where the kernel, or a container's filter, does
/// not know openat2.
[[nodiscard]] UniqueFd open_in_root(int root, const char* path, int flags) noexcept;

/// The error of a system call that failed with `number` on `file`. Errors: not_permitted, out_of_disk,
/// io_failed.
[[nodiscard]] Error file_error(int number, std::string_view call, const std::filesystem::path& file);

/// A file of mode 0600 that gets its name when it is complete. Until then it has no name, so that nothing is
/// left if the program ends. If the system or the file system does not support that, or another file is to be
/// replaced, it has a temporary name, and is removed when this is destroyed. Move-only.
class WholeFile {
public:
    /// Nothing may have the name `path`, not even a link. Errors: those of file_error().
    [[nodiscard]] static Result<WholeFile> create(const std::filesystem::path& path);
    /// One that takes the place of what has this name in `directory`, if anything; errors speak of `path`.
    /// The temporary name begins with a dot. Errors: those of file_error().
    [[nodiscard]] static Result<WholeFile> replace(UniqueFd directory, std::string name,
                                                   std::filesystem::path path);

    WholeFile(WholeFile&& other) noexcept = default;
    WholeFile& operator=(WholeFile&&) = delete;
    ~WholeFile();

    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    /// Errors: those of file_error().
    [[nodiscard]] Result<void> write(std::string_view text);
    /// Closes it and gives it its name. `lasts`: flushes it first, and its directory afterwards, as far as
    /// their file system can. Errors: those of file_error(), also if another file has the name of one to be
    /// created by now.
    [[nodiscard]] Result<void> commit(bool lasts = true);

private:
    WholeFile(UniqueFd directory, std::string name, std::filesystem::path path, bool replaces)
        : directory_(std::move(directory)), name_(std::move(name)), path_(std::move(path)),
          replaces_(replaces) {}
    [[nodiscard]] bool take_name();

    UniqueFd directory_;
    std::string name_;
    std::filesystem::path path_;
    bool replaces_;
    std::string removed_; ///< the name to be removed, in the directory: the temporary one, as a rule
    UniqueFd fd_;
};

/// Flushes and closes a descriptor, which may be a pipe's. Errors: those of file_error().
[[nodiscard]] Result<void> flush_and_close(UniqueFd fd, const std::filesystem::path& file);

/// A file, and the locks of it that this process has. Versions of the tool run side by side on one machine:
/// the names of such files, what is in them, and which lock of which kind stands for what stay as they are.
///
/// Locks are advisory, and the owner of a file can hold any of them for ever or write what he likes: whoever
/// reads it, as root does, checks the form, believes nothing that would harm others, and waits with a
/// deadline. A process can be killed between two writes, so a reader needs a sign that what it reads is
/// whole. Nothing here waits. Move-only; not thread-safe.
class LockedFile : public HeldFile {
public:
    /// The owner of a lock. A process's lock is not inherited by fork(), and ends with the process or as soon
    /// as that closes any descriptor of the file (F_SETLK). A descriptor's lock ends with the last copy of
    /// the descriptor and the last mapping that was made by it; on overlayfs no mapping holds it
    /// (F_OFD_SETLK). Source: fcntl(2).
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
    /// Opens the file `name` in `directory` unchecked, but no link. Opens it writable if possible: some file
    /// systems lock only writable files. Empty, with errno set, if it cannot be opened.
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

/// As LockedFile::share() of a byte, by a descriptor that is somebody else's, and its copies.
[[nodiscard]] bool share_byte(int file, off_t at) noexcept;

/// A name in its directory, which is open, though not to be read or flushed (O_PATH).
struct CarefulPlace {
    UniqueFd directory;
    std::string name; ///< "." if the path names a directory in another way
};

enum class LastLink {
    followed,
    kept ///< where the last name is a link's, that is the place
};

/// Where `file` really lies; nothing needs to have its last name. Links are followed that root or this user
/// has made; those by which root himself would go, only where nobody else could have put them. Errors: those
/// of file_error() (ELOOP: a link of somebody else's, or too many), with errno as it was.
[[nodiscard]] Result<CarefulPlace> find_place(const std::filesystem::path& file, LastLink last);

} // namespace gpu_sleep
