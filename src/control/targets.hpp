// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Selecting processes by pid or name, and the outcome of the request to each.

#pragma once

#include "control/find.hpp"
#include "peers/client.hpp"

#include <sys/types.h>

#include <optional>
#include <string_view>
#include <vector>

namespace gpu_sleep::control {

using peers::Answer;

/// A process and a connection to its agent.
struct Target {
    Process process;
    UniqueFd socket; ///< good for one request; where there is none, one is made for it
};

/// A process and what its agent answered.
struct Outcome {
    Process process;
    Answer answer;
    model::Operation asked = model::Operation::sleep; ///< not meaningful for a status
    bool has_waited = false;                          ///< for GPU memory, as requested
    bool by_driver = false;                           ///< the driver was asked, and not an agent
    std::optional<Bytes> gpu_bytes{};                 ///< of a sleeper: see note_gpu_use()
};

/// The selected processes, ordered by pid.
struct Targets {
    std::vector<Target> reached;
    std::vector<Outcome> unreached; ///< selected, or possibly so, but not reachable; the answers say why

    [[nodiscard]] bool is_empty() const noexcept { return reached.empty() && unreached.empty(); }
    /// Whether the process is among them.
    [[nodiscard]] bool contains(const Process& process) const noexcept;
};

/// The time for each process to answer with its name, before a sleep or a wake.
inline constexpr Milliseconds k_name_timeout{2'000};

/// Options of find_targets().
struct Search {
    std::optional<uid_t> user = {}; ///< select only processes of this user; unset for all users
    bool takes_several = false;     ///< a name may be that of several users', or of several with one program
    Milliseconds name_timeout = k_name_timeout;
};

/// Notes of the process what it is called and where it is from, as far as that is known without asking it.
void identify(const ProcFs& proc, Process& process);

/// Whether the process was started under `name`, or in the group of that name, as `variable` has it.
[[nodiscard]] bool was_named(const Finder& finder, const Process& process, const char* variable,
                             std::string_view name);

/// A name is anybody's to take, so it does not choose between users. Errors: ambiguous_name.
[[nodiscard]] Result<void> check_of_one_user(std::string_view name, const std::vector<Process>& named);

/// The one process whose pid is `text`, a number, of `user` if that is set. Errors: no_process, io_failed.
[[nodiscard]] Result<Process> find_process(const Finder& finder, std::string_view text,
                                           std::optional<uid_t> user);

/// The process without an agent that `text`, a pid or a name, stands for; of several of one name that descend
/// from one of them, that one. Errors: no_process, ambiguous_name, io_failed.
[[nodiscard]] Result<Process> find_process_without_agent(const Finder& finder, std::string_view text,
                                                         std::optional<uid_t> user);

/// The processes that `text` names. A number is a pid: that process or, if it has no agent, its descendants
/// that have one; but the first process of a pid namespace stands for nobody. Anything else is a name: all
/// processes that were given it (Report.name). For a process that does not answer within name_timeout, the
/// name in its environment counts; if it has set another name since, it is unreached, because that may be
/// this name. Where nobody was given the name it is a program's or a script's (is_called()), and no more than
/// one process may have it. Where nobody with an agent is called so, the error is that of the one without. At
/// least one of the lists is not empty. Errors: no_process, no_agent, ambiguous_name, not_permitted,
/// timed_out, io_failed.
[[nodiscard]] Result<Targets> find_targets(Finder& finder, std::string_view text, const Search& search = {});

/// The processes that `words` name, each as for find_targets(), and each process once. A word that is no
/// number selects some or keeps the command from asking any; a number by which no process can be reached is
/// among the unreached. Errors: those of a word alone, or of one that is no number.
[[nodiscard]] Result<Targets> find_each(Finder& finder, const std::vector<std::string>& words,
                                        const Search& search = {});

/// What find_each() is made of: adds to `all` what looking for one of `words` has `found`. Errors: as there.
[[nodiscard]] Result<void> add_found(Finder& finder, const std::vector<std::string>& words,
                                     std::string_view word, Result<Targets> found, Targets& all);

/// Closes the connections, because agents wait for a request for a short time only: who asks connects again.
void disconnect(Targets& targets) noexcept;

/// All processes with an agent that this user may ask, of everybody or of `user`. Errors: io_failed.
[[nodiscard]] Result<Targets> find_all(Finder& finder, std::optional<uid_t> user = {});

/// Asks each target by `request`, which is answered at once; the outcomes are in the same order. no_process
/// stands for one that has ended meanwhile, no_agent for one that runs another program now.
[[nodiscard]] std::vector<Outcome> ask_each(Finder& finder, std::vector<Target> targets,
                                            const protocol::Request& request, Milliseconds timeout);

/// The same, followed by those that were not reached.
[[nodiscard]] std::vector<Outcome> ask_each(Finder& finder, Targets targets, const protocol::Request& request,
                                            Milliseconds timeout);

/// The same for their status.
[[nodiscard]] std::vector<Outcome> ask_status(Finder& finder, Targets targets, Milliseconds timeout);

/// The status of all that find_all() finds. Errors: as there.
[[nodiscard]] Result<std::vector<Outcome>> ask_all(Finder& finder, std::optional<uid_t> user,
                                                   Milliseconds timeout);

/// `failure`, and if the process is stopped how it was before, and since when, as far as it has said.
[[nodiscard]] Error with_last_state(Finder& finder, const Process& process, Error failure);

/// Removes the outcomes of processes that have ended or run another program by now; for listings without a
/// PID.
void drop_ended(std::vector<Outcome>& outcomes);

/// The exit status for one outcome: of its failure, of a sleep whose memory the driver has not released, or
/// 0.
[[nodiscard]] int exit_status_of(const Outcome& outcome) noexcept;

/// What stands for the state of one that has not answered: "stopped" or "no answer".
[[nodiscard]] const char* silence(const Outcome& outcome) noexcept;

/// The one that matters more to who asked several, of two exit statuses: what may be lost comes first, then
/// what is not known, and 0 last.
[[nodiscard]] int worse_of(int one, int other) noexcept;

/// The exit status for several: the worst of those that failed, and were not only withdrawn because another
/// did; or 0.
[[nodiscard]] int exit_status_of(const std::vector<Outcome>& outcomes) noexcept;

} // namespace gpu_sleep::control
