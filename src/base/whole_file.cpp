// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// No name or a temporary one, flush, the final name, flush of the directory.

#include "base/whole_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace gpu_sleep {
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

} // namespace gpu_sleep
