// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking at names and owners before anything is opened.

#include "base/agent_directory.hpp"

#include "base/process.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace gpu_sleep {
namespace {

constexpr int k_open_flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

bool is_private(const struct stat& status) noexcept {
    return S_ISDIR(status.st_mode) && (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

} // namespace

Result<std::vector<std::string>> names_in(int directory, std::size_t most) {
    UniqueFd copy(open_file(directory, ".", k_open_flags));
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(copy ? ::fdopendir(copy.get()) : nullptr, &::closedir);
    if (!entries)
        return errno_error(ErrorCode::io_failed, errno, copy ? "fdopendir" : "openat",
                           "cannot read a directory");
    static_cast<void>(copy.release()); // the stream owns it now
    std::vector<std::string> names;
    for (const dirent* entry = nullptr; names.size() < most && (entry = ::readdir(entries.get())) != nullptr;)
        names.emplace_back(entry->d_name);
    return names;
}

Result<AgentDirectories> find_agent_directories(int tmp) {
    auto entries = names_in(tmp, k_max_entries);
    if (!entries) return std::move(entries).error();
    AgentDirectories found;
    found.is_whole = entries->size() < k_max_entries;
    for (auto& name : *entries) {
        struct stat status = {};
        if (name.starts_with(k_agent_directory_prefix) &&
            ::fstatat(tmp, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && is_private(status))
            found.names[status.st_uid].push_back(std::move(name));
    }
    for (auto& [owner, names] : found.names) std::sort(names.begin(), names.end());
    return found;
}

UniqueFd open_private_directory(int tmp, const std::string& name, uid_t owner) noexcept {
    UniqueFd directory(open_file(tmp, name.c_str(), k_open_flags));
    struct stat status = {};
    if (!directory || ::fstat(directory.get(), &status) != 0) return UniqueFd();
    if (status.st_uid == owner && is_private(status)) return directory;
    directory.reset();
    errno = EPERM;
    return directory;
}

} // namespace gpu_sleep
