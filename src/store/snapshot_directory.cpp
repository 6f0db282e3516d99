// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Names, leftovers, and who may touch what.

#include "store/snapshot_directory.hpp"

#include <sys/statvfs.h>

#include <array>
#include <charconv>

namespace gpu_sleep::store {
namespace {

constexpr std::string_view k_prefix = "gpu-sleep-";
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

bool is_alive(const ProcessIdentity& owner) {
    const auto start_time = start_time_of(owner.pid);
    return start_time && *start_time == owner.start_time;
}

using Lock = LockedFile::Lock;

/// Locks the file of that name until `locked` goes; fails where the file system has no locks. Nothing if the
/// file cannot be opened, or the name is no such file's any more.
std::optional<Lock> take_lock(int directory, const std::string& name, LockedFile& locked) {
    locked = LockedFile::find(directory, name.c_str());
    if (!locked || !locked.is_named(directory, name.c_str())) return std::nullopt;
    const auto lock = locked.lock();
    if (lock == Lock::failed) return has_no_locks(locked.get(), errno) ? std::optional(lock) : std::nullopt;
    // A machine to which this one exports the file system may hold it: its flock() is a lock of a part here.
    if (lock == Lock::held || locked.lock(LockedFile::Holder::descriptor, 0, 0) == Lock::held)
        return Lock::held;
    // Once more: it may have been replaced before it was locked.
    return locked.is_named(directory, name.c_str()) ? std::optional(lock) : std::nullopt;
}

/// A slash at the end would follow a link.
std::filesystem::path without_slash(const std::filesystem::path& path) {
    return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

/// Of a file that is named, or of a directory, which `is_made` if it is missing. Errors: not_permitted (by
/// way of a link of somebody else's), io_failed.
Result<CarefulPlace> place_of(const std::filesystem::path& path, bool is_made = false) {
    auto place = find_place(path, LastLink::kept);
    if (!place && errno == ELOOP)
        return refused(path, "a symbolic link in the path may be somebody else's, or forms a loop; "
                             "name its target instead");
    if (!place && is_made && errno == ENOENT) place.error().message += "; make the directory above it first";
    return place;
}

/// A directory that is there, belongs to this user, and is open to nobody else; errors speak of `path`.
Result<UniqueFd> open_private(const CarefulPlace& place, const std::filesystem::path& path) {
    UniqueFd fd(open_file(place.directory.get(), place.name.c_str(), k_open_directory));
    if (!fd && (errno == ELOOP || errno == ENOTDIR))
        return refused(path, "it is not a directory, or it is a link");
    if (!fd) return file_error(errno, "open", path);
    struct stat status = {};
    if (::fstat(fd.get(), &status) != 0) return file_error(errno, "fstat", path);
    if (status.st_uid != ::geteuid())
        return refused(path, "it belongs to somebody else; name one that the process's user owns");
    if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        return refused(path, "it is open to others; name a new directory in it, which will be private");
    return fd;
}

/// The names in a directory that are snapshots', if they are `wanted`.
template <class Wanted>
Result<std::vector<SnapshotName>> list_if(const SnapshotDirectory& directory, const Wanted& wanted) {
    const auto entries = names_in(directory.fd(), std::numeric_limits<std::size_t>::max());
    if (!entries) return file_error(entries.error().driver_status, entries.error().where, directory.path());
    std::vector<SnapshotName> names;
    for (const auto& entry : *entries)
        if (const auto name = SnapshotName::parse(entry); name && wanted(*name)) names.push_back(*name);
    return names;
}

} // namespace

std::string SnapshotName::text() const {
    auto text = fmt::format("{}{}-{}-{}", k_prefix, owner.pid, owner.start_time, number);
    if (!boot.empty()) (text += '-') += boot;
    if (!boot.empty() && pid_namespace != 0) text += fmt::format("-{}", pid_namespace);
    return text += k_endings[static_cast<std::size_t>(kind)];
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
    if (!name.boot.empty() && text.starts_with('-')) {
        text.remove_prefix(1);
        if (!take(text, name.pid_namespace, "") || name.pid_namespace == 0) return std::nullopt;
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
    const auto place = GPU_SLEEP_TRY(place_of(path, true));
    const bool is_made = ::mkdirat(place.directory.get(), place.name.c_str(), S_IRWXU) == 0;
    if (!is_made && errno != EEXIST) return file_error(errno, "mkdir", path);
    // Or a crash could take it, with files in it that were flushed.
    UniqueFd above(is_made ? open_file(place.directory.get(), ".", k_open_directory) : UniqueFd());
    if (above) GPU_SLEEP_TRY(flush_and_close(std::move(above), path));
    auto fd = GPU_SLEEP_TRY(open_private(place, path));
    return std::shared_ptr<const SnapshotDirectory>(new SnapshotDirectory(std::move(fd), path));
}

Result<SnapshotDirectory::FreeSpace> SnapshotDirectory::free_space_in(const std::filesystem::path& path) {
    const auto place = GPU_SLEEP_TRY(place_of(path, true));
    const int parent = place.directory.get();
    struct stat status = {};
    const bool is_missing =
        ::fstatat(parent, place.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT;
    UniqueFd opened;
    if (!is_missing) {
        opened = GPU_SLEEP_TRY(open_private(place, path));
    }
    const int at = is_missing ? parent : opened.get();
    if (::faccessat(at, ".", W_OK | X_OK, AT_EACCESS) != 0)
        return file_error(errno, is_missing ? "mkdir" : "openat", path);
    struct statvfs file_system = {};
    if (::fstatvfs(at, &file_system) != 0) return file_error(errno, "statvfs", path);
    if ((file_system.f_flag & ST_RDONLY) != 0) return file_error(EROFS, "open", path);
    return FreeSpace{Bytes{file_system.f_bavail} * file_system.f_frsize, lies_in_memory(at)};
}

SnapshotDirectory::Opened SnapshotDirectory::fd() const noexcept {
    if (fd_.is_held()) return {UniqueFd(), fd_.get()};
    auto anew = open_file(AT_FDCWD, whole_path_.c_str(), k_open_directory);
    struct stat status = {};
    if (FileIdentity::of(anew.get()) != fd_.identity() || ::fstat(anew.get(), &status) != 0 ||
        !is_private(status))
        return {};
    const int number = anew.get();
    return {std::move(anew), number};
}

Result<void> SnapshotDirectory::flush() const {
    const auto here = fd();
    // Where a directory cannot be flushed (CIFS, some FUSE), it keeps its own time.
    if (::fsync(here) != 0 && !knows_no_such_call(errno)) return file_error(errno, "fsync", path_);
    return {};
}

Owner look_for_owner(const SnapshotName& name, int fd) {
    const auto here = boot_id();
    const bool is_known = !here.empty() && !name.boot.empty();
    // On file systems of one machine, another boot is one before a crash.
    if (!(is_known && name.boot == here) && may_be_shared(fd)) return Owner::elsewhere;
    if (is_known && name.boot != here) return Owner::ended;
    if (is_alive(name.owner)) return Owner::alive;
    // A pid is to be looked for in its own namespace. Where that is not known, the lock must tell.
    const auto its = name.pid_namespace;
    const bool is_seen = its != 0 ? its == pid_namespace() : lock_lasts(fd);
    return is_seen ? Owner::ended : Owner::unseen;
}

LockState lock_state_of(const SnapshotName& name, int directory) {
    LockedFile locked;
    const auto got = take_lock(directory, name.text(), locked);
    if (got == Lock::held) return LockState::held;
    return got == Lock::taken && lock_lasts(directory) ? LockState::unlocked : LockState::unknown;
}

bool SnapshotDirectory::is_leftover(const SnapshotName& name, LockedFile& locked) const {
    if (name.kind == SnapshotName::Kind::kept) return false;
    const auto owner = look_for_owner(name, fd_.get());
    const bool may_be = owner == Owner::ended || (owner != Owner::elsewhere && lock_lasts(fd_.get()));
    return may_be && take_lock(fd_.get(), name.text(), locked) == Lock::taken;
}

bool SnapshotDirectory::is_doubtful(const SnapshotName& name) const {
    if (name.kind == SnapshotName::Kind::kept) return false;
    const auto owner = look_for_owner(name, fd_.get());
    if (owner == Owner::alive) return false;
    LockedFile locked;
    const auto got = take_lock(fd_.get(), name.text(), locked);
    return got == Lock::failed || (got == Lock::taken && owner != Owner::ended && !lock_lasts(fd_.get()));
}

Result<std::vector<SnapshotName>> SnapshotDirectory::leftovers() const {
    return list_if(*this, [this](const SnapshotName& name) {
        LockedFile locked;
        return is_leftover(name, locked);
    });
}

Result<std::vector<SnapshotName>> SnapshotDirectory::doubtful() const {
    return list_if(*this, [this](const SnapshotName& name) { return is_doubtful(name); });
}

Result<std::vector<SnapshotName>> SnapshotDirectory::remove_leftovers() const {
    return list_if(*this, [this](const SnapshotName& name) {
        LockedFile locked; // until it is removed, so that nobody else takes it up
        return is_leftover(name, locked) && ::unlinkat(fd_.get(), name.text().c_str(), 0) == 0;
    });
}

Result<UniqueFd> open_snapshot(const std::filesystem::path& path) {
    const auto place = GPU_SLEEP_TRY(place_of(path));
    UniqueFd fd(
        open_file(place.directory.get(), place.name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd && errno == ELOOP) return refused(path, "it is a symbolic link");
    if (!fd) return file_error(errno, "open", path);
    struct stat status = {};
    if (::fstat(fd.get(), &status) != 0) return file_error(errno, "fstat", path);
    if (!S_ISREG(status.st_mode)) return refused(path, "it is not a regular file");
    if (::geteuid() != 0 && status.st_uid != ::geteuid()) return refused(path, "it belongs to somebody else");
    return fd;
}

} // namespace gpu_sleep::store
