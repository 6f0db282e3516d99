// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Walking to a file directory by directory, and replacing it.

#include "cli/careful_files.hpp"

#include "base/fd.hpp"
#include "cli/new_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <deque>
#include <utility>

namespace gpu_sleep::cli {
namespace {

namespace fs = std::filesystem;

constexpr int k_max_links = 40; // as the kernel has it

/// A file's name in its directory, which is open.
struct Place {
    UniqueFd directory;
    std::string name;
};

/// Whether links in this directory may be followed: for root, those that root alone can have made.
bool are_links_trusted(int directory) {
    if (::geteuid() != 0) return true;
    struct stat status = {};
    return ::fstat(directory, &status) == 0 && status.st_uid == 0 &&
           (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

void put_first(std::deque<std::string>& words, const fs::path& path) {
    std::vector<std::string> parts;
    for (const auto& part : path.relative_path())
        if (!part.empty() && part != ".") parts.push_back(part);
    words.insert(words.begin(), parts.begin(), parts.end());
}

UniqueFd open_directory(int above, const char* name) {
    return UniqueFd(::openat(above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

/// What a link says, or nothing if `name` is none.
std::optional<std::string> link_target(int directory, const std::string& name) {
    std::array<char, PATH_MAX> target{};
    const auto length = ::readlinkat(directory, name.c_str(), target.data(), target.size());
    return length > 0 ? std::optional(std::string(target.data(), static_cast<std::size_t>(length)))
                      : std::nullopt;
}

/// Where `file` really lies. Errors: those of file_error().
Result<Place> find_place(const fs::path& file) {
    std::deque<std::string> words;
    put_first(words, file);
    UniqueFd here(::open(file.is_absolute() ? "/" : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (int links = 0; here && !words.empty();) {
        auto name = std::move(words.front());
        words.pop_front();
        if (const auto target = link_target(here.get(), name)) {
            if (!are_links_trusted(here.get()) || ++links > k_max_links)
                return file_error(ELOOP, "open", file);
            put_first(words, *target);
            if (target->front() == '/') here.reset(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
            continue;
        }
        if (words.empty()) return Place{std::move(here), std::move(name)};
        here = open_directory(here.get(), name.c_str());
    }
    return file_error(errno, "open", file);
}

/// A temporary file beside the place, removed unless it takes the place's name.
class Replacement {
public:
    explicit Replacement(const Place& place) : place_(place) {}
    Replacement(const Replacement&) = delete;
    Replacement& operator=(const Replacement&) = delete;
    ~Replacement() {
        if (fd_) ::unlinkat(place_.directory.get(), name_.c_str(), 0);
    }

    /// False, with errno set, if any of it fails.
    bool write(std::string_view contents, const struct stat* before, mode_t mode) {
        constexpr int k_tries = 100;
        for (int i = 0; i < k_tries && !fd_; ++i) {
            name_ = ".gpu-sleep-" + std::to_string(::getpid()) + "-" + std::to_string(i);
            fd_.reset(::openat(place_.directory.get(), name_.c_str(),
                               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
            if (!fd_ && errno != EEXIST) return false;
        }
        if (!fd_) return false;
        while (!contents.empty()) {
            const auto written = ::write(fd_.get(), contents.data(), contents.size());
            if (written < 0 && errno != EINTR) return false;
            if (written > 0) contents.remove_prefix(static_cast<std::size_t>(written));
        }
        struct stat now = {};
        if (::fstat(fd_.get(), &now) != 0) return false;
        const bool is_anothers = before && (before->st_uid != now.st_uid || before->st_gid != now.st_gid);
        if (is_anothers && ::fchown(fd_.get(), before->st_uid, before->st_gid) != 0) return false;
        return ::fchmod(fd_.get(), before ? before->st_mode & ~S_IFMT : mode) == 0 && ::fsync(fd_.get()) == 0;
    }

    bool take_place() {
        const int directory = place_.directory.get();
        if (::renameat(directory, name_.c_str(), directory, place_.name.c_str()) != 0) return false;
        fd_.reset();
        ::fsync(directory);
        return true;
    }

private:
    const Place& place_;
    std::string name_;
    UniqueFd fd_;
};

} // namespace

Result<std::optional<std::string>> read_carefully(const fs::path& file) {
    const auto place = find_place(file);
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
    std::string contents(k_max_careful_file_bytes + 1, '\0');
    std::size_t length = 0;
    while (length < contents.size()) {
        const auto got = ::read(fd.get(), contents.data() + length, contents.size() - length);
        if (got == 0) break;
        if (got < 0 && errno != EINTR) return file_error(errno, "read", file);
        if (got > 0) length += static_cast<std::size_t>(got);
    }
    if (length == contents.size())
        return make_error(ErrorCode::invalid_argument, "{} is too long", file.native());
    contents.resize(length);
    return std::optional(std::move(contents));
}

Result<void> write_carefully(const fs::path& file, std::string_view contents, mode_t mode) {
    const auto place = find_place(file);
    if (!place) return place.error();
    struct stat status = {};
    const bool is_there =
        ::fstatat(place->directory.get(), place->name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
    if (is_there && !S_ISREG(status.st_mode))
        return make_error(ErrorCode::invalid_argument, "{} is not a regular file", file.native());
    Replacement replacement(*place);
    if (!replacement.write(contents, is_there ? &status : nullptr, mode) || !replacement.take_place())
        return file_error(errno, "write", file);
    return {};
}

Result<void> remove_carefully(const fs::path& file) {
    const auto place = find_place(file);
    if (!place) return errno == ENOENT || errno == ENOTDIR ? Result<void>() : Result<void>(place.error());
    if (::unlinkat(place->directory.get(), place->name.c_str(), 0) == 0 || errno == ENOENT) return {};
    return file_error(errno, "unlink", file);
}

Result<void> make_directories(const fs::path& directory, std::vector<fs::path>& made) {
    const auto place = find_place(directory / "any");
    if (place) return {};
    if (errno != ENOENT) return place.error();
    GPU_SLEEP_TRY(make_directories(directory.parent_path(), made));
    const auto parent = find_place(directory);
    if (!parent) return parent.error();
    constexpr mode_t k_mode = 0755;
    if (::mkdirat(parent->directory.get(), parent->name.c_str(), k_mode) != 0)
        return file_error(errno, "mkdir", directory);
    made.push_back(directory);
    return {};
}

void remove_if_empty(const fs::path& directory) noexcept {
    const auto place = find_place(directory);
    if (place) ::unlinkat(place->directory.get(), place->name.c_str(), AT_REMOVEDIR);
}

} // namespace gpu_sleep::cli
