// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking for sockets, and telling the right one from leftovers and impostors.

#include "control/find.hpp"

#include "base/files.hpp"
#include "base/sockets.hpp"
#include "model/environment.hpp"

#include <algorithm>
#include <iterator>
#include <tuple>

namespace gpu_sleep::control {

namespace fs = std::filesystem;

namespace {

/// Sockets of one pid in the directories of one user: of its process, and of those that were killed and had
/// the same number.
constexpr std::size_t k_max_candidates = 16;

/// A part of the agent's file name.
constexpr std::string_view k_agent_library = "gpu-sleep-agent";

/// Opens /tmp beneath `root`; without openat2, no link is followed at all.
UniqueFd open_tmp(int root) {
    auto tmp = open_in_root(root, "tmp", O_RDONLY | O_DIRECTORY);
    if (tmp || (errno != ENOSYS && errno != EPERM)) return tmp;
    return open_file(root, "tmp", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/// Connects to the socket `name` in `directory`, by a path short enough for a socket address. Returns an
/// errno or 0.
int connect_in(int directory, const std::string& name, UniqueFd& socket) {
    const auto path = fmt::format("/proc/self/fd/{}/{}", directory, name);
    const auto address = unix_address(path);
    if (!address) return ENAMETOOLONG;
    socket = opened([&] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
    if (!socket) return errno;
    while (connect_unix(socket.get(), *address) != 0)
        if (errno != EINTR) return errno;
    return 0;
}

Error not_permitted(const Process& process) {
    return make_error(ErrorCode::not_permitted,
                      "process {} belongs to {}: only its owner and root may control it", title(process),
                      user_name(process.uid));
}

Error has_ended(const Process& process) {
    return make_error(ErrorCode::no_process, "process {} has ended", title(process));
}

/// By the environment of a process that has loaded the agent.
const char* what_starts_agent(const ProcFs& proc, pid_t pid) {
    namespace environment = model::environment;
    if (environment::disables(proc.variable(pid, environment::k_disable).value_or("")))
        return "GPU_SLEEP_DISABLE turns it off: start the program again without this variable";
    if (proc.variable(pid, environment::k_capture) == "0")
        return "it starts with the program's first tagged allocation, because of gpu-run --no-capture";
    return "it starts with the program's first CUDA call; without gpu-run, with its first tagged allocation";
}

} // namespace

Result<std::vector<UniqueFd>> Finder::open_roots(const Process& process,
                                                 const std::optional<fs::path>& listener) const {
    constexpr int k_flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    std::vector<UniqueFd> roots;
    int reason = 0;
    const auto add = [&](const fs::path& path) {
        UniqueFd root(open_file(AT_FDCWD, path.c_str(), k_flags));
        if (root)
            roots.push_back(std::move(root));
        else
            reason = errno;
    };
    if (listener) add(*listener / "root");
    add(proc_.directory(process.pid) / "root");
    if (roots.empty() && reason == ENOENT)
        for (const auto& thread : proc_.threads(process.pid))
            if (roots.empty()) add(thread / "root");
    if (!roots.empty()) return roots;
    if (lacks_descriptors(reason)) return lack_of_descriptors(reason);
    const bool is_forbidden = reason == EACCES || reason == EPERM;
    if (is_forbidden && process.uid != ::geteuid()) return not_permitted(process);
    if (!is_forbidden) return has_ended(process);
    add(plain_root_);
    if (roots.empty()) return errno_error(ErrorCode::io_failed, reason, "open", plain_root_.string());
    return roots;
}

Result<Finder::Tmp*> Finder::look_into(int tmp) {
    struct stat status {};
    if (::fstat(tmp, &status) != 0) return errno_error(ErrorCode::io_failed, errno, "fstat", "/tmp");
    const std::pair place(status.st_dev, status.st_ino);
    if (const auto known = known_.find(place); known != known_.end()) return &known->second;
    auto directories = find_agent_directories(tmp);
    if (!directories && lacks_descriptors(directories.error().driver_status))
        return lack_of_descriptors(directories.error().driver_status);
    if (!directories) return std::move(directories).error();
    return &(known_[place] = Tmp{*std::move(directories), {}});
}

Result<std::vector<Finder::Candidate>> Finder::read_candidates(uid_t owner, int tmp, const Tmp& seen) {
    std::vector<Candidate> all;
    std::vector<std::string> directories;
    if (const auto named = seen.directories.names.find(owner); named != seen.directories.names.end())
        directories = named->second;
    if (!seen.directories.is_whole) // the look ended before it, perhaps: the commonest is known
        directories.push_back(fs::path(agent_directory(owner)).filename());
    auto left = k_max_entries;
    for (const auto& directory : directories) {
        const auto opened = open_private_directory(tmp, directory, owner);
        if (!opened && lacks_descriptors(errno)) return lack_of_descriptors(errno);
        if (!opened) continue;
        const auto names = names_in(opened.get(), left);
        if (!names && lacks_descriptors(names.error().driver_status))
            return lack_of_descriptors(names.error().driver_status);
        if (!names) continue;
        for (const auto& name : *names)
            if (const auto identity = parse_agent_socket_name(name))
                all.push_back({directory, name, *identity});
        left -= names->size();
    }
    return all;
}

Result<std::vector<Finder::Candidate>> Finder::candidates_for(const Process& process, int tmp, Tmp& seen) {
    auto known = seen.candidates.find(process.uid);
    if (known == seen.candidates.end()) {
        auto read = read_candidates(process.uid, tmp, seen);
        if (!read) return read;
        known = seen.candidates.emplace(process.uid, *std::move(read)).first;
    }
    std::vector<Candidate> its;
    std::copy_if(known->second.begin(), known->second.end(), std::back_inserter(its),
                 [&](const Candidate& each) { return each.identity.pid == process.inner_pid; });
    std::stable_partition(its.begin(), its.end(), [&](const Candidate& each) {
        return each.identity.start_time == process.start_time;
    });
    if (its.size() > k_max_candidates) its.resize(k_max_candidates);
    return its;
}

Result<UniqueFd> Finder::connect_beneath(int root, const Process& process, std::string& reason) {
    const auto tmp = open_tmp(root);
    if (!tmp && lacks_descriptors(errno)) return lack_of_descriptors(errno);
    reason = "its /tmp cannot be read";
    if (!tmp) return UniqueFd();
    const auto seen = look_into(tmp.get());
    if (!seen && lacks_descriptors(seen.error().driver_status)) return seen.error();
    if (!seen) return UniqueFd();
    reason = (*seen)->directories.is_whole ? "it has no socket in /tmp" : "too many files lie in its /tmp";
    const auto candidates = GPU_SLEEP_TRY(candidates_for(process, tmp.get(), **seen));
    const bool same_clock = !candidates.empty() && proc_.shares_time_namespace(process.pid);
    for (const auto& candidate : candidates) {
        const auto directory = open_private_directory(tmp.get(), candidate.directory, process.uid);
        if (!directory && lacks_descriptors(errno)) return lack_of_descriptors(errno);
        if (!directory) continue;
        const bool is_leftover = same_clock && candidate.identity.start_time != process.start_time;
        UniqueFd socket;
        const int failure = connect_in(directory.get(), candidate.name, socket);
        if (is_leftover && failure == ECONNREFUSED)
            for (const auto& name : {candidate.name + k_state_suffix, candidate.name})
                ::unlinkat(directory.get(), name.c_str(), 0);
        if (is_leftover) continue;
        // Whether the process itself listens there: the kernel says so, and nobody can pretend.
        const auto peer = failure == 0 ? peer_of(socket.get()) : std::nullopt;
        if (peer && peer->pid == process.pid && peer->uid == process.uid) return socket;
        if (failure == EACCES || failure == EPERM) return not_permitted(process);
        if (lacks_descriptors(failure)) return lack_of_descriptors(failure);
        if (failure == EAGAIN)
            return make_error(ErrorCode::timed_out, "process {} does not accept connections", title(process));
        reason = failure == 0 ? "its socket belongs to another process" : "nothing listens on its socket";
    }
    return UniqueFd();
}

Error Finder::unreached(const Process& process, const std::optional<std::string>& listener,
                        const std::string& reason) const {
    const auto who = title(process);
    if (!listener && proc_.has_mapped(process.pid, k_agent_library))
        return make_error(ErrorCode::no_agent, "the agent in process {} has not started; {}", who,
                          what_starts_agent(proc_, process.pid));
    if (!listener)
        return make_error(ErrorCode::no_agent,
                          "there is no agent in process {}: start it again, with gpu-run or after gpu-enable",
                          who);
    // A process that ends takes its socket away first.
    const auto now = proc_.find_thread(process.pid, k_control_thread);
    if (!now || now->second == k_control_thread_ending || !proc_.is_running(process))
        return has_ended(process);
    if (!proc_.is_of_own_namespace()) // the kernel gives no pid of the peer
        return make_error(ErrorCode::agent_unreachable,
                          "the agent in process {} cannot be reached: this command is in another pid "
                          "namespace than its /proc; enter the namespace with: unshare --mount-proc",
                          who);
    return make_error(ErrorCode::agent_unreachable,
                      "the agent in process {} cannot be reached: {}; it makes a socket within seconds, or "
                      "says on the program's standard error why it cannot",
                      who, reason);
}

Result<UniqueFd> Finder::connect(const Process& process) {
    const bool has_looked = !known_.empty();
    auto socket = try_to_connect(process);
    if (socket || socket.error().code != ErrorCode::agent_unreachable || !has_looked) return socket;
    forget(); // it may have made its socket since
    return try_to_connect(process);
}

Result<UniqueFd> Finder::try_to_connect(const Process& process) {
    std::optional<fs::path> thread;
    std::optional<std::string> name;
    if (auto listener = proc_.find_thread(process.pid, k_control_thread))
        std::tie(thread, name) = *std::move(listener);
    const auto roots = GPU_SLEEP_TRY(open_roots(process, thread));
    std::string reason;
    for (const auto& root : roots) {
        std::string why_not;
        auto socket = connect_beneath(root.get(), process, why_not);
        if (!socket || *socket) return socket;
        if (reason.empty()) reason = std::move(why_not); // where it should be
    }
    return unreached(process, name, reason);
}

Result<Finder::SocketFile> Finder::socket_of(const Process& process) {
    const auto listener = proc_.find_thread(process.pid, k_control_thread);
    const auto roots =
        GPU_SLEEP_TRY(open_roots(process, listener ? std::optional(listener->first) : std::nullopt));
    for (const auto& root : roots) {
        const auto tmp = open_tmp(root.get());
        const auto seen = GPU_SLEEP_TRY(tmp ? look_into(tmp.get()) : Result<Tmp*>(nullptr));
        if (!seen) continue;
        const auto candidates = GPU_SLEEP_TRY(candidates_for(process, tmp.get(), *seen));
        if (candidates.empty()) continue;
        auto& found = candidates.front();
        if (found.identity.start_time != process.start_time && proc_.shares_time_namespace(process.pid))
            continue; // a leftover
        auto directory = open_private_directory(tmp.get(), found.directory, process.uid);
        if (directory) return SocketFile{std::move(directory), found.name};
    }
    return make_error(ErrorCode::no_agent, "process {} has no socket in /tmp", title(process));
}

} // namespace gpu_sleep::control
