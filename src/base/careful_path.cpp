// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Opening directory after directory, and reading links.

#include "base/careful_path.hpp"

#include "base/whole_file.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <deque>
#include <utility>
#include <vector>

namespace gpu_sleep {
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

/// What links say there does not lead to where they lead.
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
