// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Names, locks, and who may touch what.

#include "store/snapshot_directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <utility>

namespace gpu_sleep::store {
namespace {

constexpr std::string_view k_prefix = "gpu-sleep-";
/// File systems that one machine alone has at a time. Any other may be shared.
constexpr std::array<std::uint32_t, 12> k_of_one_machine = {
    EXT4_SUPER_MAGIC,     XFS_SUPER_MAGIC,      BTRFS_SUPER_MAGIC,
    TMPFS_MAGIC,          RAMFS_MAGIC,          OVERLAYFS_SUPER_MAGIC,
    F2FS_SUPER_MAGIC,     0x2FC12FC1 /* ZFS */, 0xCA451A4E /* bcachefs */,
    0x3153464A /* JFS */, MSDOS_SUPER_MAGIC,    EXFAT_SUPER_MAGIC};

constexpr int k_open_directory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr std::array<std::string_view, 3> k_endings = {".snapshot", ".partial", ".kept"};

/// Takes a number and what must follow it from the front of `text`.
template <class T>
bool take(std::string_view& text, T& number, std::string_view follows) {
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure != std::errc{} || (text[0] == '0' && end != text.data() + 1)) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.starts_with(follows)) return false;
    text.remove_prefix(follows.size());
    return true;
}

Error refused(const std::filesystem::path& path, std::string_view why) {
    return make_error(ErrorCode::not_permitted, "{} is not used: {}", path.string(), why);
}

Error failed(int number, std::string_view call, const std::filesystem::path& path) {
    const auto code = number == EACCES || number == EPERM || number == EROFS    ? ErrorCode::not_permitted
                      : number == ENOSPC || number == EDQUOT || number == EFBIG ? ErrorCode::out_of_disk
                                                                                : ErrorCode::io_failed;
    return errno_error(code, number, call, path.string());
}

bool is_alive(const ProcessIdentity& owner) {
    const auto start_time = start_time_of(owner.pid);
    return start_time && *start_time == owner.start_time;
}

bool may_be_shared(int fd) {
    struct statfs system = {};
    return ::fstatfs(fd, &system) != 0 ||
           std::find(k_of_one_machine.begin(), k_of_one_machine.end(),
                     static_cast<std::uint32_t>(system.f_type)) == k_of_one_machine.end();
}

/// Whether a machine to which this one exports the file system holds the file: its flock() is a lock of a
/// range here, which does not meet flock().
bool is_locked_from_afar(int fd) {
    struct flock whole = {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    return ::fcntl(fd, F_OFD_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES);
}

bool is_same_file(int fd, int directory, const std::string& name) {
    struct stat open = {};
    struct stat named = {};
    return ::fstat(fd, &open) == 0 && ::fstatat(directory, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

/// Whether it is this user's, and nobody else may do anything with it.
bool is_private(const struct stat& status) noexcept {
    return status.st_uid == ::geteuid() && (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

/// A slash at the end would follow a link.
std::filesystem::path without_slash(const std::filesystem::path& path) {
    return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

/// A directory that is there, belongs to this user, and is open to nobody else.
Result<UniqueFd> open_private(const std::filesystem::path& path) {
    UniqueFd fd(::open(path.c_str(), k_open_directory));
    if (!fd && (errno == ELOOP || errno == ENOTDIR)) return refused(path, "it is no directory, or a link");
    if (!fd) return failed(errno, "open", path);
    struct stat status = {};
    if (::fstat(fd.get(), &status) != 0) return failed(errno, "fstat", path);
    if (status.st_uid != ::geteuid()) return refused(path, "it belongs to somebody else");
    if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        return refused(path, "others can look into it; chmod 700 it, or name a directory in it");
    return fd;
}

struct CloseDirectory {
    void operator()(DIR* directory) const noexcept { ::closedir(directory); }
};

/// The names in a directory that are snapshots'.
Result<std::vector<SnapshotName>> list(const SnapshotDirectory& directory) {
    UniqueFd anew;
    UniqueFd copy(::openat(directory.fd(anew), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!copy) return failed(errno, "openat", directory.path());
    const std::unique_ptr<DIR, CloseDirectory> stream(::fdopendir(copy.get()));
    if (!stream) return failed(errno, "fdopendir", directory.path());
    static_cast<void>(copy.release()); // the stream's now
    std::vector<SnapshotName> names;
    while (const auto* entry = ::readdir(stream.get()))
        if (const auto name = SnapshotName::parse(entry->d_name)) names.push_back(*name);
    return names;
}

} // namespace

std::string SnapshotName::text() const {
    return fmt::format("{}{}-{}-{}{}{}{}", k_prefix, owner.pid, owner.start_time, number,
                       boot.empty() ? "" : "-", boot, k_endings[static_cast<std::size_t>(kind)]);
}

std::optional<SnapshotName> SnapshotName::parse(std::string_view text) {
    SnapshotName name;
    if (!text.starts_with(k_prefix)) return std::nullopt;
    text.remove_prefix(k_prefix.size());
    if (!take(text, name.owner.pid, "-") || !take(text, name.owner.start_time, "-") ||
        !take(text, name.number, "") || name.owner.pid <= 0)
        return std::nullopt;
    if (text.starts_with('-')) {
        name.boot = text.substr(1, k_boot_id_digits);
        if (!is_boot_id(name.boot)) return std::nullopt;
        text.remove_prefix(1 + name.boot.size());
    }
    for (std::size_t i = 0; i < k_endings.size(); ++i) {
        if (text != k_endings[i]) continue;
        name.kind = static_cast<Kind>(i);
        return name;
    }
    return std::nullopt;
}

Result<std::shared_ptr<const SnapshotDirectory>> SnapshotDirectory::open(const std::filesystem::path& named) {
    const auto path = without_slash(named);
    if (::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) return failed(errno, "mkdir", path);
    auto fd = open_private(path);
    if (!fd) return std::move(fd).error();
    return std::shared_ptr<const SnapshotDirectory>(new SnapshotDirectory(*std::move(fd), path));
}

Result<Bytes> SnapshotDirectory::room_in(const std::filesystem::path& named) {
    const auto path = without_slash(named);
    struct stat status = {};
    const bool is_missing = ::lstat(path.c_str(), &status) != 0 && errno == ENOENT;
    auto at = path;
    if (is_missing) {
        at = path.has_parent_path() ? path.parent_path() : ".";
        if (::faccessat(AT_FDCWD, at.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
            return failed(errno, "mkdir", path);
    } else if (const auto fd = open_private(path); !fd) {
        return fd.error();
    } else if (::faccessat(fd->get(), ".", W_OK | X_OK, AT_EACCESS) != 0) {
        return failed(errno, "openat", path);
    }
    struct statvfs room = {};
    if (::statvfs(at.c_str(), &room) != 0) return failed(errno, "statvfs", at);
    if ((room.f_flag & ST_RDONLY) != 0) return failed(EROFS, "open", path);
    return Bytes{room.f_bavail} * room.f_frsize;
}

int SnapshotDirectory::fd(UniqueFd& anew) const noexcept {
    if (fd_.is_held()) return fd_.get();
    anew.reset(::open(whole_path_.c_str(), k_open_directory));
    struct stat status = {};
    if (!fd_.is_of_same_file(anew.get()) || ::fstat(anew.get(), &status) != 0 || !is_private(status))
        anew.reset();
    return anew.get();
}

Result<void> SnapshotDirectory::flush() const {
    UniqueFd anew;
    if (::fsync(fd(anew)) != 0) return failed(errno, "fsync", path_);
    return {};
}

Owner look_for_owner(const SnapshotName& name, int fd) {
    const auto here = boot_id();
    const bool is_known = !here.empty() && !name.boot.empty();
    // On file systems of one machine, another boot is one before a crash.
    if (!(is_known && name.boot == here) && may_be_shared(fd)) return Owner::elsewhere;
    if (is_known && name.boot != here) return Owner::ended;
    return is_alive(name.owner) ? Owner::alive : Owner::ended;
}

bool SnapshotDirectory::is_left_by(Owner owner, const SnapshotName& name, UniqueFd& locked) const {
    if (name.kind == SnapshotName::Kind::kept || look_for_owner(name, fd_.get()) != owner) return false;
    // Some file systems lock only what may be written.
    locked.reset(::openat(fd_.get(), name.text().c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    return locked && ::flock(locked.get(), LOCK_EX | LOCK_NB) == 0 && !is_locked_from_afar(locked.get()) &&
           is_same_file(locked.get(), fd_.get(), name.text());
}

Result<std::vector<SnapshotName>> SnapshotDirectory::leftovers() const {
    auto names = list(*this);
    if (!names) return names;
    std::erase_if(*names, [this](const SnapshotName& name) {
        UniqueFd locked;
        return !is_left_by(Owner::ended, name, locked);
    });
    return names;
}

Result<std::vector<SnapshotName>> SnapshotDirectory::doubtful() const {
    auto names = list(*this);
    if (!names) return names;
    std::erase_if(*names, [this](const SnapshotName& name) {
        UniqueFd locked;
        return !is_left_by(Owner::elsewhere, name, locked);
    });
    return names;
}

Result<std::vector<SnapshotName>> SnapshotDirectory::remove_leftovers() const {
    auto names = list(*this);
    if (!names) return names;
    std::erase_if(*names, [this](const SnapshotName& name) {
        UniqueFd locked; // until it is removed, so that nobody else takes it up
        return !is_left_by(Owner::ended, name, locked) || ::unlinkat(fd_.get(), name.text().c_str(), 0) != 0;
    });
    return names;
}

Result<SnapshotFile> SnapshotFile::create(std::shared_ptr<const SnapshotDirectory> directory,
                                          ProcessIdentity owner, bool direct) {
    static std::atomic<std::uint64_t> next{1};
    constexpr int k_flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    constexpr int k_tries = 1000; // a process in another container may have the same pid and start time
    const auto boot = boot_id();
    UniqueFd anew;
    const int at = directory->fd(anew);
    for (int i = 0; i < k_tries; ++i) {
        SnapshotName name{owner, next++, SnapshotName::Kind::partial, boot};
        auto text = name.text();
        // A final name is taken as well if somebody has it: renaming must not replace.
        const auto is_taken = [&](SnapshotName::Kind kind) {
            const SnapshotName final_name{owner, name.number, kind, boot};
            return ::faccessat(at, final_name.text().c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
        };
        if (is_taken(SnapshotName::Kind::sleeping) || is_taken(SnapshotName::Kind::kept)) continue;
        UnsharedFd fd(UniqueFd(::openat(at, text.c_str(), k_flags, S_IRUSR | S_IWUSR)));
        if (!fd && errno == EEXIST) continue;
        if (!fd) return failed(errno, "openat", directory->path() / text);
        if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
            const int status = errno;
            if (fd.is_named(at, text.c_str())) ::unlinkat(at, text.c_str(), 0);
            if (status == EWOULDBLOCK)
                continue; // looked at, as a leftover, in the moment before it was locked
            return failed(status, "flock", directory->path() / text);
        }
        if (!fd.is_named(at, text.c_str())) continue; // and removed
        if (direct) pass_by_page_cache(fd.get());
        return SnapshotFile(std::move(directory), std::move(name), std::move(text),
                            std::move(fd)); // no memory
    }
    return make_error(ErrorCode::io_failed, "no name for a snapshot is free in {}",
                      directory->path().string());
}

bool pass_by_page_cache(int fd) noexcept {
    struct statfs system = {};
    // These accept it and copy all the same: their files are nowhere else.
    if (::fstatfs(fd, &system) != 0 || system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC)
        return false;
    const int flags = ::fcntl(fd, F_GETFL);
    return flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

bool passes_by_page_cache(int fd) noexcept {
    const int flags = ::fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0;
}

SnapshotFile& SnapshotFile::operator=(SnapshotFile&& other) noexcept {
    if (this == &other) return *this;
    remove();
    directory_ = std::move(other.directory_);
    name_ = std::move(other.name_);
    text_ = std::move(other.text_);
    fd_ = std::move(other.fd_);
    return *this;
}

Result<void> SnapshotFile::check_held() const {
    if (fd_.is_held()) return {};
    return make_error(ErrorCode::io_failed, "the program has closed {}", path().string());
}

Result<void> SnapshotFile::hold() {
    return fd_.is_held() ? Result<void>() : open_anew();
}

Result<void> SnapshotFile::open_anew() {
    UniqueFd anew;
    const int at = directory_->fd(anew);
    if (at < 0 || !fd_.is_named(at, text_.c_str()))
        return make_error(
            ErrorCode::io_failed,
            "the program has closed {}, and it is not there any more under its name: put it back",
            path().string());
    UniqueFd fd(::openat(at, text_.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status = {};
    if (!fd || ::fstat(fd.get(), &status) != 0) return failed(errno, "openat", path());
    if (!fd_.is_of_same_file(fd.get()) || !S_ISREG(status.st_mode) || !is_private(status))
        return refused(path(), "it is somebody else's now, or others can read it; chmod 600 it");
    // Somebody who looks for leftovers may have it locked for a moment; it is no leftover, and stays.
    static_cast<void>(::flock(fd.get(), LOCK_EX | LOCK_NB));
    pass_by_page_cache(fd.get());
    fd_.renew(std::move(fd));
    return {};
}

Result<void> SnapshotFile::rename(SnapshotName::Kind kind) {
    auto renamed = name_;
    renamed.kind = kind;
    auto to = renamed.text();
    UniqueFd anew;
    const int at = directory_->fd(anew);
    if (!fd_.is_named(at, text_.c_str()))
        return make_error(ErrorCode::io_failed, "{} was removed or replaced by somebody", path().string());
    // Not every file system can refuse to replace; nobody else makes names of this owner.
    if (::renameat2(at, text_.c_str(), at, to.c_str(), RENAME_NOREPLACE) != 0 &&
        (errno != EINVAL || ::renameat(at, text_.c_str(), at, to.c_str()) != 0))
        return failed(errno, "rename", path());
    name_ = std::move(renamed);
    text_ = std::move(to);
    return {};
}

void SnapshotFile::reserve(Bytes bytes) noexcept {
    if (!passes_by_page_cache(fd_.get())) return;
    // Where that is more than the disk has, the contents may still fit once they are compressed.
    if (::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
        static_cast<void>(::ftruncate(fd_.get(), 0));
}

Result<void> SnapshotFile::cut(Bytes bytes) {
    GPU_SLEEP_TRY(check_held());
    if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) return failed(errno, "ftruncate", path());
    return {};
}

Result<void> SnapshotFile::commit() {
    GPU_SLEEP_TRY(check_held());
    if (::fsync(fd_.get()) != 0) return failed(errno, "fsync", path());
    GPU_SLEEP_TRY(rename(SnapshotName::Kind::sleeping));
    return directory_->flush();
}

void SnapshotFile::unlink() noexcept {
    // Only while the name is that of this file.
    if (!fd_) return;
    UniqueFd anew;
    const int at = directory_->fd(anew);
    if (fd_.is_named(at, text_.c_str())) ::unlinkat(at, text_.c_str(), 0);
}

void SnapshotFile::remove() noexcept {
    unlink();
    fd_.reset();
}

Result<UniqueFd> open_snapshot(const std::filesystem::path& path) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd && errno == ELOOP) return refused(path, "it is a symbolic link");
    if (!fd) return failed(errno, "open", path);
    struct stat status = {};
    if (::fstat(fd.get(), &status) != 0) return failed(errno, "fstat", path);
    if (!S_ISREG(status.st_mode)) return refused(path, "it is no plain file");
    if (::geteuid() != 0 && status.st_uid != ::geteuid()) return refused(path, "it belongs to somebody else");
    return fd;
}

} // namespace gpu_sleep::store
