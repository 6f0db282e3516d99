// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which processes a person means, and what became of the request to each.

#pragma once

#include "cli/client.hpp"
#include "cli/find.hpp"

#include <sys/types.h>

#include <optional>
#include <string_view>
#include <vector>

namespace gpu_sleep::cli {

/// A process and a connection to its agent.
struct Target {
    Process process;
    UniqueFd socket; ///< good for one request
};

/// A process and what its agent answered.
struct Outcome {
    Process process;
    Answer answer;
    model::Operation asked = model::Operation::sleep; ///< of it; means nothing of a status
    bool has_waited = false;                          ///< for GPU memory that was short, as it was asked to
};

/// Whom a command is to ask, ordered by pid.
struct Targets {
    std::vector<Target> reached;
    std::vector<Outcome> unreached; ///< who is meant, or may be, and cannot be asked; their answers say why
};

/// For each process to say its name, before a sleep or a wake.
inline constexpr Milliseconds k_name_timeout{2'000};

/// Where to look for them.
struct Search {
    std::optional<uid_t> user = {};   ///< whose processes alone are meant; none for everybody's
    bool takes_several_users = false; ///< a name may be that of processes of several users
    Milliseconds name_timeout = k_name_timeout;
};

/// The processes that `text` names. A number is a pid: that process or, if it has no agent, its descendants
/// that have one. Anything else is a name: all that bear it (Report.name). Of a process that does not say its
/// name within name_timeout, the environment decides; if it has named itself since, it is unreached,
/// for it may bear that name. Never both lists are empty. Errors: no_process, no_agent, ambiguous_name,
/// not_permitted, timed_out, io_failed.
[[nodiscard]] Result<Targets> find_targets(Finder& finder, std::string_view text, const Search& search = {});

/// All processes with an agent that this user may ask, of everybody or of `user`. Errors: io_failed.
[[nodiscard]] Result<Targets> find_all(Finder& finder, std::optional<uid_t> user = {});

/// Asks each target for its status; the outcomes are in the same order. no_process stands for one that has
/// ended meanwhile, no_agent for one that runs another program now.
[[nodiscard]] std::vector<Outcome> ask_status(Finder& finder, std::vector<Target> targets,
                                              Milliseconds timeout);

/// The same, followed by those that were not reached.
[[nodiscard]] std::vector<Outcome> ask_status(Finder& finder, Targets targets, Milliseconds timeout);

/// Drops the outcomes of processes that have ended meanwhile or run another program, for where nobody asked
/// for them by pid.
void drop_ended(std::vector<Outcome>& outcomes);

/// The exit status for one outcome: of its failure, or 0.
[[nodiscard]] int exit_status_of(const Outcome& outcome) noexcept;

/// The exit status for several: that of the first that failed, or 0.
[[nodiscard]] int exit_status_of(const std::vector<Outcome>& outcomes) noexcept;

} // namespace gpu_sleep::cli
