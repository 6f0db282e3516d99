// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading, replacing and removing, in the directory that a careful walk leads to.

#include "cli/login/careful_files.hpp"

#include "base/files.hpp"

namespace gpu_sleep::cli {
namespace fs = std::filesystem;

Result<std::optional<std::string>> read_carefully(const fs::path& file) {
    const auto place = find_place(file, LastLink::followed);
    if (!place) {
        if (errno == ENOENT || errno == ENOTDIR) return std::optional<std::string>();
        return place.error();
    }
    const UniqueFd fd(::openat(place->directory.get(), place->name.c_str(),
                               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    if (!fd && errno == ENOENT) return std::optional<std::string>();
    struct stat status = {};
    if (!fd || ::fstat(fd.get(), &status) != 0) return file_error(errno, "open", file);
    if (!S_ISREG(status.st_mode))
        return make_error(ErrorCode::invalid_argument, "{} is not a regular file", file.native());
    auto contents = read_open_file(fd.get(), k_max_careful_file_bytes);
    if (!contents && errno == EFBIG)
        return make_error(ErrorCode::invalid_argument, "{} is too long", file.native());
    if (!contents) return file_error(errno, "read", file);
    return contents;
}

Result<void> write_carefully(const fs::path& file, std::string_view contents, mode_t mode) {
    auto place = GPU_SLEEP_TRY(find_place(file, LastLink::followed));
    struct stat status = {};
    const bool is_there =
        ::fstatat(place.directory.get(), place.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
    if (is_there && !S_ISREG(status.st_mode))
        return make_error(ErrorCode::invalid_argument, "{} is not a regular file", file.native());
    auto replacement = GPU_SLEEP_TRY(WholeFile::replace(std::move(place.directory), place.name, file));
    GPU_SLEEP_TRY(replacement.write(contents));
    struct stat now = {};
    const int fd = replacement.fd();
    const bool is_anothers =
        is_there && ::fstat(fd, &now) == 0 && (status.st_uid != now.st_uid || status.st_gid != now.st_gid);
    if ((is_anothers && ::fchown(fd, status.st_uid, status.st_gid) != 0) ||
        ::fchmod(fd, is_there ? status.st_mode & ~S_IFMT : mode) != 0)
        return file_error(errno, "write", file);
    return replacement.commit();
}

Result<void> remove_carefully(const fs::path& file) {
    const auto place = find_place(file, LastLink::followed);
    if (!place) return errno == ENOENT || errno == ENOTDIR ? Result<void>() : Result<void>(place.error());
    if (::unlinkat(place->directory.get(), place->name.c_str(), 0) == 0 || errno == ENOENT) return {};
    return file_error(errno, "unlink", file);
}

Result<void> make_directories(const fs::path& directory, Visitors visitors, std::vector<fs::path>& made) {
    const auto place = find_place(directory / "any", LastLink::followed);
    if (place) return {};
    if (errno != ENOENT) return place.error();
    GPU_SLEEP_TRY(make_directories(directory.parent_path(), visitors, made));
    const auto parent = GPU_SLEEP_TRY(find_place(directory, LastLink::followed));
    constexpr mode_t k_mode = 0755;
    if (::mkdirat(parent.directory.get(), parent.name.c_str(), k_mode) != 0)
        return file_error(errno, "mkdir", directory);
    made.push_back(directory);
    if (visitors == Visitors::by_umask) return {};
    const auto fd = open_file(parent.directory.get(), parent.name.c_str(),
                              O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (!fd) return file_error(errno, "open", directory);
    if (::fchmod(fd.get(), k_mode) != 0) return file_error(errno, "chmod", directory);
    return {};
}

void remove_if_empty(const fs::path& directory) noexcept {
    const auto place = find_place(directory, LastLink::followed);
    if (place) ::unlinkat(place->directory.get(), place->name.c_str(), AT_REMOVEDIR);
}

} // namespace gpu_sleep::cli
