// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// No name or a temporary one, flush, the final name, flush of the directory.

#include "cli/new_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace gpu_sleep::cli {
namespace {

/// Some files cannot be flushed, and need not be: pipes, and what lies in memory.
Result<void> flush(int fd, const std::filesystem::path& file) {
    if (::fsync(fd) == 0 || errno == EINVAL || errno == EROFS || errno == ENOTSUP) return {};
    return file_error(errno, "fsync", file);
}

Result<void> flush_directory_of(const std::filesystem::path& file) {
    const auto parent = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
    const UniqueFd directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // One that may be written but not read keeps its own time.
    return directory ? flush(directory.get(), parent) : Result<void>();
}

/// Where an open file can be found to be given a name.
std::string own_link(int fd) {
    return "/proc/self/fd/" + std::to_string(fd);
}

/// An open file in the directory of `path` that has no name and can be given one; or none.
UniqueFd open_nameless(const std::filesystem::path& path) {
    const auto parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
    UniqueFd fd(::open(parent.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (fd && ::access(own_link(fd.get()).c_str(), F_OK) != 0) fd.reset(); // no proc file system
    return fd;
}

/// Takes the new name with an empty file first, and replaces that.
bool rename_to_taken(const char* from, const char* to) noexcept {
    const UniqueFd taken(::open(to, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (!taken) return false;
    if (::renameat(AT_FDCWD, from, AT_FDCWD, to) == 0) return true;
    const int status = errno;
    ::unlinkat(AT_FDCWD, to, 0);
    errno = status;
    return false;
}

/// Fails where the new name is somebody's, with EEXIST.
bool rename_to_free(const char* from, const char* to) noexcept {
    if (::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return true;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) return false;
    if (::linkat(AT_FDCWD, from, AT_FDCWD, to, 0) != 0)
        return errno != EEXIST && rename_to_taken(from, to); // no links either: FAT, some FUSE
    ::unlinkat(AT_FDCWD, from, 0);                           // without which the file is whole all the same
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
    // Network file systems and quotas speak up as late as here.
    if (::close(fd.release()) != 0 && errno != EINTR) return file_error(errno, "close", file);
    return {};
}

Result<NewFile> NewFile::create(const std::filesystem::path& path) {
    struct stat status = {};
    if (::lstat(path.c_str(), &status) == 0) return file_error(EEXIST, "open", path);
    if (auto fd = open_nameless(path)) return NewFile(path, {}, std::move(fd));
    auto partial = path.string() + ".partial-XXXXXX";
    UniqueFd fd(::mkostemp(partial.data(), O_CLOEXEC));
    if (!fd) return file_error(errno, "mkostemp", path);
    return NewFile(path, std::move(partial), std::move(fd));
}

Result<void> NewFile::commit_nameless() {
    GPU_SLEEP_TRY(flush(fd_.get(), path_));
    if (::linkat(AT_FDCWD, own_link(fd_.get()).c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) != 0)
        return file_error(errno, "linkat", path_);
    partial_ = path_.string(); // removed if it may not last
    GPU_SLEEP_TRY(flush_and_close(std::move(fd_), path_));
    GPU_SLEEP_TRY(flush_directory_of(path_));
    partial_.clear();
    return {};
}

Result<void> NewFile::commit() {
    if (partial_.empty()) return commit_nameless();
    GPU_SLEEP_TRY(flush_and_close(std::move(fd_), path_));
    if (!rename_to_free(partial_.c_str(), path_.c_str())) return file_error(errno, "rename", path_);
    partial_ = path_.string(); // removed if it may not last
    GPU_SLEEP_TRY(flush_directory_of(path_));
    partial_.clear();
    return {};
}

NewFile::~NewFile() {
    if (!partial_.empty()) ::unlink(partial_.c_str());
}

} // namespace gpu_sleep::cli
