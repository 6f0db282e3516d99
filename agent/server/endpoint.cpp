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

/// Opens `path` as a private directory of this user, made if it is missing. Errors: not_permitted (somebody
/// else has taken the name), io_failed.
Result<UniqueFd> open_private_directory(const std::string& path) {
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
        return errno_error(ErrorCode::io_failed, errno, "mkdir", path);
    UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    if (!directory || ::fstat(directory.get(), &status) != 0) {
        const bool is_taken = errno == ELOOP || errno == ENOTDIR || errno == EACCES;
        return errno_error(is_taken ? ErrorCode::not_permitted : ErrorCode::io_failed, errno, "open", path);
    }
    if (status.st_uid != ::geteuid() || (status.st_mode & 077) != 0)
        return make_error(ErrorCode::not_permitted, "{} belongs to somebody else or is open to others", path);
    return directory;
}

/// Somebody may have taken the name first, out of malice or by accident: numbered names follow it. Any other
/// trouble would be the same with each of them.
Result<UniqueFd> open_agent_directory(std::string& path, bool& is_numbered) {
    constexpr int k_tries = 10;
    const auto name = agent_directory(::geteuid());
    path = name;
    auto directory = open_private_directory(path);
    const auto is_taken = [&] { return !directory && directory.error().code == ErrorCode::not_permitted; };
    for (int i = 1; i < k_tries && is_taken(); ++i) {
        path = fmt::format("{}.{}", name, i);
        directory = open_private_directory(path);
        is_numbered = true;
    }
    return directory;
}

Result<sockaddr_un> address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path))
        return make_error(ErrorCode::io_failed, "{} is too long", path);
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    return address;
}

Result<UniqueFd> new_socket(const std::string& path) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return errno_error(ErrorCode::io_failed, errno, "socket", path);
    return socket;
}

int connect_to(int socket, const sockaddr_un& address) {
    return ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

/// Whether nobody listens on the socket at `path`, which is named after `owner`. That no such process is seen
/// proves nothing: where pid namespaces share a /tmp, it may live in another one.
bool is_stale(const std::string& path, const ProcessIdentity& owner) {
    const auto started = start_time_of(owner.pid);
    if (started && *started == owner.start_time) return false; // it may be about to listen
    const auto address = address_of(path);
    const auto socket = new_socket(path);
    return address && socket && connect_to(socket->get(), *address) != 0 && errno == ECONNREFUSED;
}

void remove_stale_sockets(int directory, const std::string& path) {
    const int copy = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(copy < 0 ? nullptr : ::fdopendir(copy), &::closedir);
    if (!entries) return;
    while (const auto* entry = ::readdir(entries.get())) {
        const std::string name = entry->d_name;
        const auto owner = parse_agent_socket_name(name);
        if (owner && is_stale(fmt::format("{}/{}", path, name), *owner))
            ::unlinkat(directory, name.c_str(), 0);
    }
}

} // namespace

Result<void> Endpoint::open() {
    std::string directory_path;
    bool is_numbered = false;
    const auto directory = open_agent_directory(directory_path, is_numbered);
    if (!directory) return directory.error();
    remove_stale_sockets(directory->get(), directory_path);
    const auto started = own_start_time();
    if (!started) return started.error();
    const auto name = agent_socket_name(::getpid(), *started);
    path_ = directory_path + "/" + name;

    const auto address = address_of(path_);
    if (!address) return address.error();
    auto socket = new_socket(path_);
    if (!socket) return std::move(socket).error();
    ::unlinkat(directory->get(), name.c_str(), 0);
    if (::bind(socket->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0)
        return errno_error(ErrorCode::io_failed, errno, "bind", path_);
    struct stat status {};
    if (::fchmodat(directory->get(), name.c_str(), 0600, 0) != 0 || ::listen(socket->get(), SOMAXCONN) != 0 ||
        ::fstatat(directory->get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
        return errno_error(ErrorCode::io_failed, errno, "listen", path_);
    device_ = status.st_dev;
    inode_ = status.st_ino;
    numbered_directory_ = is_numbered ? std::move(directory_path) : std::string();
    spare_ = HeldSocket(); // of the socket that was
    socket_ = HeldSocket(*std::move(socket));
    keep_spare();
    return {};
}

bool Endpoint::is_in_place() const {
    struct stat status {};
    return is_held() && ::lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ &&
           status.st_ino == inode_;
}

void Endpoint::remove() const noexcept {
    if (socket_.get() < 0) return;
    ::unlink(path_.c_str());
    if (!numbered_directory_.empty()) ::rmdir(numbered_directory_.c_str()); // which stays if others are in it
}

void Endpoint::shut() noexcept {
    remove();
    spare_ = HeldSocket();
    socket_ = HeldSocket();
}

UniqueFd Endpoint::accept() noexcept {
    constexpr int k_tries = 4; // the program's threads want what is given up, too
    for (int i = 1;; ++i) {
        UniqueFd connection(::accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC));
        if (connection || (errno != EMFILE && errno != ENFILE) || i == k_tries) return connection;
        spare_ = HeldSocket();
    }
}

void Endpoint::keep_spare() noexcept {
    if (is_held() && !spare_.is_held()) spare_ = HeldSocket(UniqueFd(::fcntl(fd(), F_DUPFD_CLOEXEC, 0)));
}

void Endpoint::close_in_child() const noexcept {
    for (const auto* each : {&socket_, &spare_})
        if (each->is_held()) ::close(each->get());
}

} // namespace gpu_sleep::agent::server
