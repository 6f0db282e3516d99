// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking for sockets, and telling the right one from leftovers and impostors.

#include "cli/find.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace gpu_sleep::cli {
namespace {

constexpr int k_directory_flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

/// Opens /tmp beneath `root`: no link in another's file tree may lead out of it. Where the kernel, or a
/// container's filter, does not know openat2, no link is followed at all.
UniqueFd open_tmp(int root) {
    open_how how{};
    how.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
    const auto opened = ::syscall(SYS_openat2, root, "tmp", &how, sizeof(how));
    if (opened >= 0) return UniqueFd(static_cast<int>(opened));
    if (errno != ENOSYS && errno != EPERM) return UniqueFd();
    return UniqueFd(::openat(root, "tmp", k_directory_flags));
}

/// Empty for a directory that cannot be read. Errors: io_failed, for want of descriptors.
Result<std::vector<std::string>> names_in(int directory) {
    std::vector<std::string> names;
    UniqueFd copy(::openat(directory, ".", k_directory_flags));
    if (!copy && lacks_descriptors(errno)) return lack_of_descriptors(errno);
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(copy ? ::fdopendir(copy.get()) : nullptr, &::closedir);
    if (!entries) return names;
    static_cast<void>(copy.release()); // the stream owns it now
    while (const auto* entry = ::readdir(entries.get())) names.emplace_back(entry->d_name);
    return names;
}

/// Connects to the socket `name` in `directory`, by a path short enough for a socket address. Returns an
/// errno or 0.
int connect_in(int directory, const std::string& name, UniqueFd& socket) {
    const auto path = fmt::format("/proc/self/fd/{}/{}", directory, name);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path)) return ENAMETOOLONG;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    socket.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return errno;
    while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
        if (errno != EINTR) return errno;
    return 0;
}

/// Whether `process` itself listens at the other end. The kernel says so, and nobody can pretend.
bool is_peer(int socket, const Process& process) {
    ucred peer{};
    socklen_t length = sizeof(peer);
    return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.pid == process.pid &&
           peer.uid == process.uid;
}

Error not_permitted(const Process& process) {
    return make_error(ErrorCode::not_permitted, "process {} belongs to {}", title(process),
                      user_name(process.uid));
}

} // namespace

Result<UniqueFd> Finder::open_root(const Process& process) const {
    constexpr int k_flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    UniqueFd root(::open((proc_.directory(process.pid) / "root").c_str(), k_flags));
    int reason = errno;
    if (!root && reason == ENOENT) {
        for (const auto& thread : proc_.threads(process.pid)) {
            root.reset(::open((thread / "root").c_str(), k_flags));
            if (root) break;
            reason = errno;
        }
    }
    if (root) return root;
    if (lacks_descriptors(reason)) return lack_of_descriptors(reason);
    const bool is_forbidden = reason == EACCES || reason == EPERM;
    if (is_forbidden && process.uid != ::geteuid()) return not_permitted(process);
    if (!is_forbidden) return make_error(ErrorCode::no_process, "process {} has ended", title(process));
    root.reset(::open(plain_root_.c_str(), k_flags));
    if (!root) return errno_error(ErrorCode::io_failed, errno, "open", plain_root_.string());
    return root;
}

Result<const Finder::Candidates*> Finder::candidates_for(const Process& process) {
    const auto root = open_root(process);
    if (!root) return root.error();
    const auto tmp = open_tmp(root->get());
    struct stat status {};
    if (!tmp && lacks_descriptors(errno)) return lack_of_descriptors(errno);
    if (!tmp || ::fstat(tmp.get(), &status) != 0)
        return make_error(ErrorCode::no_agent, "there is no agent in process {}: its /tmp cannot be read",
                          title(process));
    const std::pair place(status.st_dev, status.st_ino);
    if (const auto known = known_.find(place); known != known_.end()) return &known->second;

    Candidates candidates;
    const auto user_directories = names_in(tmp.get());
    if (!user_directories) return user_directories.error();
    for (const auto& user_directory : *user_directories) {
        if (!user_directory.starts_with(k_agent_directory_prefix)) continue;
        const auto directory =
            std::make_shared<const UniqueFd>(::openat(tmp.get(), user_directory.c_str(), k_directory_flags));
        if (!*directory && lacks_descriptors(errno)) return lack_of_descriptors(errno);
        if (!*directory || ::fstat(directory->get(), &status) != 0 || (status.st_mode & 077) != 0) continue;
        auto names = names_in(directory->get());
        if (!names) return std::move(names).error();
        for (auto& name : *names)
            if (const auto identity = parse_agent_socket_name(name))
                candidates.push_back({directory, status.st_uid, std::move(name), *identity});
    }
    return &(known_[place] = std::move(candidates));
}

Result<UniqueFd> Finder::connect(const Process& process) {
    const auto candidates = candidates_for(process);
    if (!candidates) return candidates.error();
    const bool same_clock = proc_.shares_time_namespace(process.pid);
    const char* reason = "it has no socket in /tmp";
    for (const auto& candidate : **candidates) {
        if (candidate.identity.pid != process.inner_pid || candidate.owner != process.uid) continue;
        const bool is_leftover = same_clock && candidate.identity.start_time != process.start_time;
        UniqueFd socket;
        const int failure = connect_in(candidate.directory->get(), candidate.name, socket);
        if (is_leftover && failure == ECONNREFUSED)
            ::unlinkat(candidate.directory->get(), candidate.name.c_str(), 0);
        if (is_leftover) continue;
        if (failure == 0 && is_peer(socket.get(), process)) return socket;
        if (failure == EACCES || failure == EPERM) return not_permitted(process);
        if (lacks_descriptors(failure)) return lack_of_descriptors(failure);
        if (failure == EAGAIN)
            return make_error(ErrorCode::timed_out, "process {} does not accept connections", title(process));
        reason = failure == 0 ? "its socket belongs to another process" : "nobody listens on its socket";
    }
    const bool has_agent = proc_.has_thread(process.pid, k_control_thread) ||
                           proc_.has_thread(process.pid, k_control_thread_renamed);
    if (has_agent)
        return make_error(ErrorCode::no_agent,
                          "the agent in process {} cannot be reached: {}, and it makes that again within "
                          "seconds, or says on the program's standard error why it cannot",
                          title(process), reason);
    return make_error(ErrorCode::no_agent, "there is no agent in process {}: {}", title(process), reason);
}

} // namespace gpu_sleep::cli
