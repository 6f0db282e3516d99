// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sockets of this user.

#include "peers/neighbours.hpp"

#include "base/agent_directory.hpp"
#include "base/unix_socket.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace gpu_sleep::peers {

Result<Neighbours> Neighbours::open() {
    constexpr std::string_view k_tmp = "/tmp/";
    const auto user = ::geteuid();
    auto path = agent_directory(user);
    const UniqueFd tmp(open_file(AT_FDCWD, k_tmp.data(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!tmp) return errno_error(ErrorCode::io_failed, errno, "open", "/tmp");
    auto directory = open_private_directory(tmp.get(), path.substr(k_tmp.size()), user);
    if (!directory) return errno_error(ErrorCode::io_failed, errno, "open", path);
    return Neighbours(std::move(directory), std::move(path));
}

Result<std::vector<ProcessIdentity>> Neighbours::list() const {
    const auto names = names_in(directory_.get(), k_max_entries);
    if (!names) return names.error();
    const auto start_time = own_start_time();
    const ProcessIdentity self{::getpid(), start_time ? *start_time : 0};
    std::vector<ProcessIdentity> all;
    for (const auto& name : *names)
        if (const auto process = parse_agent_socket_name(name); process && *process != self)
            all.push_back(*process);
    return all;
}

Result<UniqueFd> Neighbours::connect(const ProcessIdentity& process) const {
    const auto path = fmt::format("{}/{}", path_, agent_socket_name(process.pid, process.start_time));
    const auto address = unix_address(path);
    if (!address) return make_error(ErrorCode::io_failed, "{} is too long", path);
    auto socket = opened([&] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
    if (!socket) return errno_error(ErrorCode::io_failed, errno, "socket", path);
    if (connect_unix(socket.get(), *address) != 0) {
        if (errno == EAGAIN)
            return make_error(ErrorCode::timed_out, "process {} does not accept connections", process.pid);
        return errno_error(ErrorCode::no_agent, errno, "connect", path);
    }
    const auto peer = peer_of(socket.get());
    if (!peer || peer->uid != ::geteuid())
        return make_error(ErrorCode::no_agent, "process {} has no agent here", process.pid);
    return socket;
}

} // namespace gpu_sleep::peers
