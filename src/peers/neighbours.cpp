// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sockets of this user.

#include "peers/neighbours.hpp"

#include "base/agent_directory.hpp"
#include "base/text.hpp"
#include "base/unix_socket.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <string_view>
#include <utility>

namespace gpu_sleep::peers {

namespace {

constexpr std::string_view k_tmp = "/tmp/";

/// The directories named `name` of the user `user` in every /tmp but the one that `own` lies in, each once.
/// Whoever may not be looked at is left out.
std::vector<UniqueFd> directories_elsewhere(int own, const std::string& name, uid_t user) {
    std::vector<UniqueFd> found;
    struct stat status = {};
    const UniqueFd proc(::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!proc || ::fstat(own, &status) != 0) return found;
    std::set<std::pair<dev_t, ino_t>> known{{status.st_dev, status.st_ino}};
    std::set<ino_t> namespaces;
    if (::fstatat(proc.get(), "self/ns/mnt", &status, 0) == 0) namespaces.insert(status.st_ino);
    const auto pids = names_in(proc.get(), k_max_entries);
    if (!pids) return found;
    for (const auto& pid : *pids) {
        if (!parse_number<pid_t>(pid)) continue;
        if (::fstatat(proc.get(), pid.c_str(), &status, 0) != 0 || status.st_uid != user) continue;
        const auto mounts = pid + "/ns/mnt";
        if (::fstatat(proc.get(), mounts.c_str(), &status, 0) != 0) continue;
        if (!namespaces.insert(status.st_ino).second) continue;
        const auto its = pid + "/root/tmp"; // no link in another's file tree is followed
        const UniqueFd tmp(
            ::openat(proc.get(), its.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (!tmp) continue;
        auto directory = open_private_directory(tmp.get(), name, user);
        if (!directory || ::fstat(directory.get(), &status) != 0) continue;
        if (known.emplace(status.st_dev, status.st_ino).second) found.push_back(std::move(directory));
    }
    return found;
}

} // namespace

Result<Neighbours> Neighbours::open() {
    const auto user = ::geteuid();
    auto path = agent_directory(user);
    const UniqueFd tmp(::open(k_tmp.data(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!tmp) return errno_error(ErrorCode::io_failed, errno, "open", "/tmp");
    auto directory = open_private_directory(tmp.get(), path.substr(k_tmp.size()), user);
    if (!directory) return errno_error(ErrorCode::io_failed, errno, "open", path);
    return Neighbours(std::move(directory), std::move(path));
}

Result<std::vector<Neighbour>> Neighbours::list() const {
    const auto start_time = own_start_time();
    const ProcessIdentity self{::getpid(), start_time ? *start_time : 0};
    std::vector<Neighbour> all;
    const auto add = [&](const std::vector<std::string>& names,
                         const std::shared_ptr<const UniqueFd>& elsewhere) {
        for (const auto& name : names)
            if (const auto process = parse_agent_socket_name(name); process && *process != self)
                all.push_back({*process, elsewhere});
    };
    const auto names = names_in(directory_.get(), k_max_entries);
    if (!names) return names.error();
    add(*names, nullptr);
    for (auto& each : directories_elsewhere(directory_.get(), path_.substr(k_tmp.size()), ::geteuid())) {
        const auto elsewhere = std::make_shared<const UniqueFd>(std::move(each));
        if (const auto its = names_in(elsewhere->get(), k_max_entries)) add(*its, elsewhere);
    }
    return all;
}

Result<UniqueFd> Neighbours::connect(const Neighbour& neighbour) const {
    const auto& process = neighbour.process;
    const auto directory =
        neighbour.elsewhere ? fmt::format("/proc/self/fd/{}", neighbour.elsewhere->get()) : path_;
    const auto path = fmt::format("{}/{}", directory, agent_socket_name(process.pid, process.start_time));
    const auto address = unix_address(path);
    if (!address) return make_error(ErrorCode::io_failed, "{} is too long", path);
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
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
