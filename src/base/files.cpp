// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading, writing, locking, and walking to a file directory by directory.

#include "base/files.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <new>
#include <vector>

namespace gpu_sleep {

std::optional<std::string> read_small_file(const std::filesystem::path& path) {
    const UniqueFd file(open_file(AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC));
    return file ? read_open_file(file.get(), std::string::npos) : std::nullopt;
}

std::optional<std::string> read_open_file(int file, std::size_t most) {
    std::string text;
    std::array<char, 4096> part{};
    while (text.size() <= most) {
        const auto got = ::read(file, part.data(), part.size());
        if (got == 0) return text;
        if (got > 0)
            text.append(part.data(), static_cast<std::size_t>(got));
        else if (errno != EINTR)
            return std::nullopt;
    }
    errno = EFBIG;
    return std::nullopt;
}

std::optional<std::string_view> take_line(std::string_view& text) noexcept {
    if (text.empty()) return std::nullopt;
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return line;
}

UniqueFd open_in_root(int root, const char* path, int flags) noexcept {
    open_how how{};
    how.flags = static_cast<unsigned>(flags) | O_CLOEXEC;
    how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
    return opened([&] { return static_cast<int>(::syscall(SYS_openat2, root, path, &how, sizeof(how))); });
}

namespace {

constexpr mode_t k_owners_mode = S_IRUSR | S_IWUSR;

/// Some files cannot be flushed, and need not be: pipes, and what lies in memory.
Result<void> flush(int fd, const std::filesystem::path& file) {
    if (::fsync(fd) == 0 || errno == EINVAL || errno == EROFS || errno == ENOTSUP) return {};
    return file_error(errno, "fsync", file);
}

Result<void> close_file(UniqueFd fd, const std::filesystem::path& file) {
    // Network file systems and quotas speak up as late as here.
    if (::close(fd.release()) != 0 && errno != EINTR) return file_error(errno, "close", file);
    return {};
}

/// Where an open file can be found to be given a name.
std::string own_link(int fd) {
    return "/proc/self/fd/" + std::to_string(fd);
}

/// An open file in the directory that has no name and can be given one; or none.
UniqueFd open_nameless(int directory) {
    UniqueFd fd(open_file(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, k_owners_mode));
    if (fd && ::access(own_link(fd.get()).c_str(), F_OK) != 0) fd.reset(); // no proc file system
    return fd;
}

/// Takes the new name with an empty file first, and replaces that.
bool rename_to_taken(int directory, const char* from, const char* to) noexcept {
    const UniqueFd taken(
        open_file(directory, to, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, k_owners_mode));
    if (!taken) return false;
    if (::renameat(directory, from, directory, to) == 0) return true;
    const int status = errno;
    ::unlinkat(directory, to, 0);
    errno = status;
    return false;
}

/// Fails where the new name is somebody's, with EEXIST.
bool rename_to_free(int directory, const char* from, const char* to) noexcept {
    if (::renameat2(directory, from, directory, to, RENAME_NOREPLACE) == 0) return true;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) return false;
    if (::linkat(directory, from, directory, to, 0) != 0)
        return errno != EEXIST && rename_to_taken(directory, from, to); // no links either: FAT, some FUSE
    ::unlinkat(directory, from, 0); // without which the file is whole all the same
    return true;
}

} // namespace

Error file_error(int number, std::string_view call, const std::filesystem::path& file) {
    const auto code = number == EACCES || number == EPERM || number == EROFS    ? ErrorCode::not_permitted
                      : number == ENOSPC || number == EDQUOT || number == EFBIG ? ErrorCode::out_of_disk
                                                                                : ErrorCode::io_failed;
    return errno_error(code, number, call, file.string());
}

Result<void> flush_and_close(UniqueFd fd, const std::filesystem::path& file) {
    GPU_SLEEP_TRY(flush(fd.get(), file));
    return close_file(std::move(fd), file);
}

Result<WholeFile> WholeFile::create(const std::filesystem::path& path) {
    struct stat status = {};
    if (::lstat(path.c_str(), &status) == 0) return file_error(EEXIST, "open", path);
    const auto parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
    WholeFile file(UniqueFd(open_file(AT_FDCWD, parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)),
                   path.filename().string(), path, false);
    const int directory = file.directory_.get();
    if (directory < 0) return file_error(errno, "open", path);
    file.fd_ = open_nameless(directory);
    if (file.fd_) return file;
    auto partial = path.string() + ".partial-XXXXXX";
    file.fd_ = opened([&] { return ::mkostemp(partial.data(), O_CLOEXEC); });
    if (!file.fd_) return file_error(errno, "mkostemp", path);
    file.removed_ = std::filesystem::path(partial).filename().string();
    return file;
}

Result<WholeFile> WholeFile::replace(UniqueFd directory, std::string name, std::filesystem::path path) {
    constexpr int k_tries = 100;
    WholeFile file(std::move(directory), std::move(name), std::move(path), true);
    for (int i = 0; i < k_tries; ++i) {
        auto temporary = ".gpu-sleep-" + std::to_string(::getpid()) + "-" + std::to_string(i);
        file.fd_ = open_file(file.directory_.get(), temporary.c_str(),
                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, k_owners_mode);
        if (file.fd_) {
            file.removed_ = std::move(temporary);
            return file;
        }
        if (errno != EEXIST) break;
    }
    return file_error(errno, "open", file.path_);
}

Result<void> WholeFile::write(std::string_view text) {
    while (!text.empty()) {
        const auto written = ::write(fd_.get(), text.data(), text.size());
        if (written < 0 && errno != EINTR) return file_error(errno, "write", path_);
        if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
    }
    return {};
}

bool WholeFile::take_name() {
    const int directory = directory_.get();
    if (replaces_) return ::renameat(directory, removed_.c_str(), directory, name_.c_str()) == 0;
    if (!removed_.empty()) return rename_to_free(directory, removed_.c_str(), name_.c_str());
    return ::linkat(AT_FDCWD, own_link(fd_.get()).c_str(), directory, name_.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

Result<void> WholeFile::commit(bool lasts) {
    if (lasts) GPU_SLEEP_TRY(flush(fd_.get(), path_));
    const bool has_name = !removed_.empty();
    if (has_name) GPU_SLEEP_TRY(close_file(std::move(fd_), path_));
    if (!take_name()) return file_error(errno, has_name ? "rename" : "linkat", path_);
    removed_ = replaces_ ? std::string() : name_; // a new one goes if it may not last
    if (!has_name) GPU_SLEEP_TRY(close_file(std::move(fd_), path_));
    // A directory that may be written but not read keeps its own time.
    const UniqueFd read(open_file(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (lasts && read) {
        auto flushed = flush(read.get(), path_.parent_path());
        if (!flushed && !replaces_) return flushed;
    }
    removed_.clear();
    return {};
}

WholeFile::~WholeFile() {
    if (!removed_.empty()) ::unlinkat(directory_.get(), removed_.c_str(), 0);
}

namespace {

constexpr int k_file_flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

struct flock part(short type, off_t start, off_t bytes) noexcept {
    struct flock lock = {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = start;
    lock.l_len = bytes;
    return lock;
}

LockedFile::Lock outcome(int status) noexcept {
    if (status == 0) return LockedFile::Lock::taken;
    const bool is_held = errno == EWOULDBLOCK || errno == EACCES;
    return is_held ? LockedFile::Lock::held : LockedFile::Lock::failed;
}

int set(int file, LockedFile::Holder holder, struct flock lock) noexcept {
    const int command = holder == LockedFile::Holder::process ? F_SETLK : F_OFD_SETLK;
    int status = 0;
    while ((status = ::fcntl(file, command, &lock)) != 0 && errno == EINTR) {
    }
    return status;
}

} // namespace

Result<LockedFile> LockedFile::open(int directory, const std::string& name) {
    constexpr int k_flags = O_RDWR | k_file_flags;
    constexpr mode_t k_mode = S_IRUSR | S_IWUSR;
    const auto failed = [&](const char* call) {
        return errno_error(ErrorCode::io_failed, errno, call, name);
    };
    struct stat owner = {};
    if (::fstat(directory, &owner) != 0) return failed("fstat");
    UniqueFd file;
    do {
        file = open_file(directory, name.c_str(), k_flags);
        if (file || errno != ENOENT) break;
        // It is given away only if nobody has linked another one there meanwhile.
        file = open_file(directory, name.c_str(), k_flags | O_CREAT | O_EXCL, k_mode);
        if (file && owner.st_uid != ::geteuid() && ::fchown(file.get(), owner.st_uid, owner.st_gid) != 0)
            return failed("fchown");
    } while (!file && errno == EEXIST);
    if (!file) return failed("open");
    struct stat status = {};
    if (::fstat(file.get(), &status) != 0) return failed("fstat");
    if (!S_ISREG(status.st_mode) || status.st_uid != owner.st_uid || status.st_nlink > 1)
        return make_error(ErrorCode::io_failed,
                          "{} is not a regular file that belongs to the directory's owner alone", name);
    return LockedFile(std::move(file));
}

LockedFile LockedFile::find(int directory, const char* name) noexcept {
    UniqueFd file(open_file(directory, name, O_RDWR | k_file_flags));
    if (!file && errno == EROFS) file = open_file(directory, name, O_RDONLY | k_file_flags);
    return LockedFile(std::move(file));
}

LockedFile::Lock LockedFile::lock() const noexcept {
    return outcome(::flock(get(), LOCK_EX | LOCK_NB));
}

void LockedFile::unlock() const noexcept {
    ::flock(get(), LOCK_UN);
}

LockedFile::Lock LockedFile::lock(Holder holder, off_t start, off_t bytes) const noexcept {
    return outcome(set(get(), holder, part(F_WRLCK, start, bytes)));
}

LockedFile::Lock LockedFile::share(Holder holder, off_t start, off_t bytes) const noexcept {
    return outcome(set(get(), holder, part(F_RDLCK, start, bytes)));
}

bool share_byte(int file, off_t at) noexcept {
    return set(file, LockedFile::Holder::descriptor, part(F_RDLCK, at, 1)) == 0;
}

void LockedFile::unlock(Holder holder, off_t start, off_t bytes) const noexcept {
    set(get(), holder, part(F_UNLCK, start, bytes));
}

std::optional<struct flock> LockedFile::find_lock(Holder holder, off_t start, off_t bytes) const noexcept {
    auto lock = part(F_WRLCK, start, bytes);
    const int command = holder == Holder::process ? F_GETLK : F_OFD_GETLK;
    int status = 0;
    while ((status = ::fcntl(get(), command, &lock)) != 0 && errno == EINTR) {
    }
    if (status != 0) return part(F_RDLCK, start, bytes);
    return lock.l_type != F_UNLCK ? std::optional(lock) : std::nullopt;
}

namespace {

constexpr std::size_t k_anchor_bytes = 1; // of which the kernel makes a page

} // namespace

void AnchorRelease::operator()(void* page) const noexcept {
    ::munmap(page, k_anchor_bytes);
}

Anchor make_anchor(int fd) noexcept {
    void* const page = ::mmap(nullptr, k_anchor_bytes, PROT_NONE, MAP_PRIVATE, fd, 0);
    Anchor anchor(page == MAP_FAILED ? nullptr : page);
    if (anchor && ::madvise(page, k_anchor_bytes, MADV_DONTFORK) != 0) anchor.reset();
    return anchor;
}

/// Of one descriptor. Never freed, but used again.
struct UnsharedFd::Note {
    static constexpr int k_free = -1;
    static constexpr int k_being_written = -2;

    std::atomic<int> fd{k_being_written};
    FileIdentity file;    ///< the number may be somebody else's by now
    Note* next = nullptr; ///< not changed later

    inline static std::atomic<Note*> s_first{nullptr};

    /// One to be written. Null when memory is short.
    static Note* take() noexcept {
        for (auto* note = s_first.load(std::memory_order_acquire); note != nullptr; note = note->next) {
            int expected = k_free;
            if (note->fd.compare_exchange_strong(expected, k_being_written)) return note;
        }
        auto* const made = new (std::nothrow) Note;
        if (made == nullptr) return nullptr;
        made->next = s_first.load(std::memory_order_relaxed);
        while (!s_first.compare_exchange_weak(made->next, made)) {
        }
        return made;
    }
};

UnsharedFd::UnsharedFd(LockedFile file) noexcept : LockedFile(std::move(file)) {
    struct stat status = {};
    if (!*this || ::fstat(get(), &status) != 0) return;
    if (S_ISREG(status.st_mode)) anchor_ = make_anchor(get());
    note_.reset(Note::take());
    if (!note_) return;
    note_->file = identity();
    note_->fd.store(get(), std::memory_order_release);
}

void UnsharedFd::NoteRelease::operator()(Note* note) const noexcept {
    note->fd.store(Note::k_free, std::memory_order_release);
}

void UnsharedFd::renew(LockedFile file) noexcept {
    abandon(); // the number is the program's, nobody's, or the new one's
    LockedFile::operator=(std::move(file));
    if (note_) note_->fd.store(get(), std::memory_order_release);
}

void UnsharedFd::reset() noexcept {
    if (is_held()) ::close(get());
    abandon(); // it stays known which file that was
    anchor_.reset();
    note_.reset();
}

void close_unshared_fds() noexcept {
    using Note = UnsharedFd::Note;
    for (auto* note = Note::s_first.load(std::memory_order_acquire); note != nullptr; note = note->next) {
        const int fd = note->fd.exchange(Note::k_free);
        if (fd >= 0 && FileIdentity::of(fd) == note->file) ::close(fd);
    }
}

namespace {

constexpr int k_max_links = 40; // as the kernel has it
constexpr int k_open_directory = O_PATH | O_DIRECTORY | O_CLOEXEC;

/// Root owns "/", though in a user namespace he may have any number.
bool is_roots(const struct stat& file) {
    struct stat top = {};
    return file.st_uid == 0 || (::stat("/", &top) == 0 && file.st_uid == top.st_uid);
}

/// Whether nobody but root and this user can have made the link, nor, where this is root or root is not
/// known, put it here.
bool is_trusted(int directory, const struct stat& link) {
    const bool is_mapped = link.st_uid == 0; // else the number may be that of all who have none here
    if (::geteuid() != 0 && (is_mapped || link.st_uid == ::geteuid())) return true;
    struct stat status = {};
    return is_roots(link) && ::fstat(directory, &status) == 0 && is_roots(status) &&
           ((status.st_mode & (S_IWGRP | S_IWOTH)) == 0 || (is_mapped && (status.st_mode & S_ISVTX) != 0));
}

/// Links in /proc do not lead to where their text says.
bool is_proc(int directory) {
    struct statfs system = {};
    return ::fstatfs(directory, &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
}

void put_first(std::deque<std::string>& words, const std::filesystem::path& path) {
    std::vector<std::string> parts;
    for (const auto& part : path.relative_path())
        if (!part.empty() && part != ".") parts.push_back(part);
    words.insert(words.begin(), parts.begin(), parts.end());
}

} // namespace

Result<CarefulPlace> find_place(const std::filesystem::path& file, LastLink last) {
    std::deque<std::string> words;
    put_first(words, file);
    UniqueFd here(open_file(AT_FDCWD, file.is_absolute() ? "/" : ".", k_open_directory));
    for (int links = 0; here;) {
        if (words.empty()) return CarefulPlace{std::move(here), "."};
        auto name = std::move(words.front());
        words.pop_front();
        const bool is_last = words.empty();
        if (is_last && last == LastLink::kept) return CarefulPlace{std::move(here), std::move(name)};
        const UniqueFd link(open_file(here.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
        struct stat status = {};
        const bool is_link = link && ::fstat(link.get(), &status) == 0 && S_ISLNK(status.st_mode);
        if (is_link && (is_last || !is_proc(here.get()))) {
            std::array<char, PATH_MAX> target{};
            const auto length = ::readlinkat(link.get(), "", target.data(), target.size() - 1);
            if (length <= 0 || !is_trusted(here.get(), status) || ++links > k_max_links)
                return file_error(errno = ELOOP, "open", file);
            put_first(words, target.data());
            if (target[0] == '/') here = open_file(AT_FDCWD, "/", k_open_directory);
        } else if (is_last) {
            return CarefulPlace{std::move(here), std::move(name)};
        } else {
            const int follow = is_link ? 0 : O_NOFOLLOW;
            here = open_file(here.get(), name.c_str(), k_open_directory | follow);
        }
    }
    return file_error(errno, "open", file);
}

} // namespace gpu_sleep
