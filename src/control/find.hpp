// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Connecting to the agent of a process, given its pid.

#pragma once

#include "control/process_info.hpp"

namespace gpu_sleep::control {

/// Finds agents' sockets under /proc/PID/task/TID/root/tmp, TID being the thread that listens, and under
/// /proc/PID/root/tmp, and connects to them. Caches what it has read, so make a new one for each command or
/// listing, or have it forget. Keeps nothing open. Not thread-safe.
class Finder {
public:
    /// `plain_root` stands in for /proc/PID/root where that cannot be opened though the process is ours.
    explicit Finder(ProcFs proc = ProcFs(), std::filesystem::path plain_root = "/")
        : proc_(std::move(proc)), plain_root_(std::move(plain_root)) {}

    /// A connected, non-blocking stream socket whose peer is `process`: pid, user and start time have been
    /// checked. Removes sockets that an earlier process of the same pid left behind, where it may. Errors:
    /// no_agent, agent_unreachable (it has one), not_permitted, timed_out (it does not accept connections),
    /// no_process (it has ended).
    [[nodiscard]] Result<UniqueFd> connect(const Process& process);

    struct SocketFile {
        UniqueFd directory;
        std::string name; ///< in it
    };
    /// Where the process's socket is, as far as names tell. Errors: as for connect().
    [[nodiscard]] Result<SocketFile> socket_of(const Process& process);

    void forget() noexcept { known_.clear(); }

    [[nodiscard]] const ProcFs& proc() const noexcept { return proc_; }

private:
    /// A socket's file in a directory of some user.
    struct Candidate {
        std::string directory;
        std::string name;
        ProcessIdentity identity; ///< of the process, from the file's name
    };
    /// The agents' directories and sockets of a /tmp.
    struct Tmp {
        AgentDirectories directories;
        std::map<uid_t, std::vector<Candidate>> candidates; ///< of the users that were looked for
    };

    /// As connect(), by what is known of each /tmp.
    [[nodiscard]] Result<UniqueFd> try_to_connect(const Process& process);
    [[nodiscard]] Result<std::vector<UniqueFd>>
    open_roots(const Process& process, const std::optional<std::filesystem::path>& listener) const;
    [[nodiscard]] Result<Tmp*> look_into(int tmp);
    /// All of `owner`. Errors: io_failed, for want of descriptors; so the next.
    [[nodiscard]] static Result<std::vector<Candidate>> read_candidates(uid_t owner, int tmp,
                                                                        const Tmp& seen);
    /// Returns the sockets that may be the process's, the likeliest first.
    [[nodiscard]] static Result<std::vector<Candidate>> candidates_for(const Process& process, int tmp,
                                                                       Tmp& seen);
    /// Empty, and `reason` says why, where it is not beneath `root`. Errors: as for connect().
    [[nodiscard]] Result<UniqueFd> connect_beneath(int root, const Process& process, std::string& reason);
    [[nodiscard]] Error unreached(const Process& process, const std::optional<std::string>& listener,
                                  const std::string& reason) const;

    ProcFs proc_;
    std::filesystem::path plain_root_;
    std::map<std::pair<dev_t, ino_t>, Tmp> known_; ///< by the identity of the /tmp
};

} // namespace gpu_sleep::control
