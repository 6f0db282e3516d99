// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Making and keeping the socket.

#include "endpoint.hpp"

#include "base/process.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

namespace gpu_sleep::agent::server {
namespace {

/// Opens `path` as a private directory of this user, made if it is missing.
Result<UniqueFd> open_private_directory(const std::string& path) {
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
        return errno_error(ErrorCode::io_failed, errno, "mkdir", path);
    UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    if (!directory || ::fstat(directory.get(), &status) != 0)
        return errno_error(ErrorCode::not_permitted, errno, "open", path);
    if (status.st_uid != ::geteuid() || (status.st_mode & 077) != 0)
        return make_error(ErrorCode::not_permitted, "{} belongs to somebody else or is open to others", path);
    return directory;
}

/// Somebody may have taken the name first, out of malice or by accident: numbered names follow it.
Result<UniqueFd> open_agent_directory(std::string& path) {
    constexpr int k_tries = 10;
    const auto name = agent_directory(::geteuid());
    path = name;
    auto directory = open_private_directory(path);
    for (int i = 1; i < k_tries && !directory; ++i) {
        path = fmt::format("{}.{}", name, i);
        directory = open_private_directory(path);
    }
    return directory;
}

void remove_stale_sockets(int directory) {
    const int copy = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(copy < 0 ? nullptr : ::fdopendir(copy), &::closedir);
    if (!entries) return;
    while (const auto* entry = ::readdir(entries.get())) {
        const auto owner = parse_agent_socket_name(entry->d_name);
        if (!owner) continue;
        const auto started = start_time_of(owner->pid);
        if (!started || *started != owner->start_time) ::unlinkat(directory, entry->d_name, 0);
    }
}

} // namespace

Result<void> Endpoint::open() {
    std::string directory_path;
    const auto directory = open_agent_directory(directory_path);
    if (!directory) return directory.error();
    remove_stale_sockets(directory->get());
    const auto started = start_time_of(::getpid());
    if (!started) return started.error();
    const auto name = agent_socket_name(::getpid(), *started);
    path_ = directory_path + "/" + name;

    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path_.size() >= sizeof(address.sun_path))
        return make_error(ErrorCode::io_failed, "{} is too long", path_);
    std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return errno_error(ErrorCode::io_failed, errno, "socket", path_);
    ::unlinkat(directory->get(), name.c_str(), 0);
    if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
        return errno_error(ErrorCode::io_failed, errno, "bind", path_);
    struct stat status {};
    if (::fchmodat(directory->get(), name.c_str(), 0600, 0) != 0 || ::listen(socket.get(), SOMAXCONN) != 0 ||
        ::fstatat(directory->get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
        return errno_error(ErrorCode::io_failed, errno, "listen", path_);
    device_ = status.st_dev;
    inode_ = status.st_ino;
    socket_ = std::move(socket);
    return {};
}

bool Endpoint::is_in_place() const {
    struct stat status {};
    return socket_ && ::lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ &&
           status.st_ino == inode_;
}

void Endpoint::remove() const noexcept {
    if (socket_) ::unlink(path_.c_str());
}

void Endpoint::close_in_child() const noexcept {
    if (socket_) ::close(socket_.get());
}

} // namespace gpu_sleep::agent::server
