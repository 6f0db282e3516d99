// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From a process to a connection to its agent, by the process's pid alone.

#pragma once

#include "base/fd.hpp"
#include "cli/process_info.hpp"

#include <sys/types.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace gpu_sleep::cli {

/// Finds agents' sockets under /proc/PID/root/tmp and connects to them. Remembers the directories that it has
/// read, so it lives as long as one look around. Not thread-safe.
class Finder {
public:
    /// `plain_root` stands in for /proc/PID/root where that cannot be opened though the process is ours.
    explicit Finder(ProcFs proc = ProcFs(), std::filesystem::path plain_root = "/")
        : proc_(std::move(proc)), plain_root_(std::move(plain_root)) {}

    /// A connected, non-blocking stream socket whose peer is `process`: pid, user and start time have been
    /// checked. Removes sockets that an earlier process of the same pid left behind, where it may. Errors:
    /// no_agent, not_permitted, timed_out (it does not accept connections), no_process (it has ended).
    [[nodiscard]] Result<UniqueFd> connect(const Process& process);

    [[nodiscard]] const ProcFs& proc() const noexcept { return proc_; }

private:
    /// A socket's file in some user's agent directory.
    struct Candidate {
        std::shared_ptr<const UniqueFd> directory;
        uid_t owner = 0; ///< of the directory
        std::string name;
        ProcessIdentity identity; ///< of the process, from the file's name
    };
    using Candidates = std::vector<Candidate>;

    [[nodiscard]] Result<UniqueFd> open_root(const Process& process) const;
    [[nodiscard]] Result<const Candidates*> candidates_for(const Process& process);

    ProcFs proc_;
    std::filesystem::path plain_root_;
    std::map<std::pair<dev_t, ino_t>, Candidates> known_; ///< by the identity of the /tmp that holds them
};

} // namespace gpu_sleep::cli
