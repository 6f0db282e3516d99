// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Selecting processes by pid, name, tree or group.

#pragma once

#include "control/ask.hpp"

namespace gpu_sleep::control {

/// Options of find_targets().
struct Search {
    std::optional<uid_t> user = {}; ///< select only processes of this user; unset for all users
    bool takes_several = false;     ///< a name may be that of several users', or of several with one program
    Milliseconds name_timeout{2'000}; ///< for each process to answer with its name
};

/// Notes of the process what it is called and where it is from, as far as that is known without asking it.
void identify(const ProcFs& proc, Process& process);

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

/// The part of find_each() for one of `words`: adds what was `found` for it to `all`. Errors: as there.
[[nodiscard]] Result<void> add_found(Finder& finder, const std::vector<std::string>& words,
                                     std::string_view word, Result<Targets> found, Targets& all);

/// Closes the connections, because agents wait for a request for a short time only: who asks connects again.
void disconnect(Targets& targets) noexcept;

/// All processes with an agent that this user may ask, of everybody or of `user`. Errors: io_failed.
[[nodiscard]] Result<Targets> find_all(Finder& finder, std::optional<uid_t> user = {});

/// The status of all that find_all() finds. Errors: as there.
[[nodiscard]] Result<std::vector<Outcome>> ask_all(Finder& finder, std::optional<uid_t> user,
                                                   Milliseconds timeout);

// ---- Those that go together

/// The process that `text` names, and that no other of that name has started. Errors: no_process,
/// ambiguous_name, io_failed.
[[nodiscard]] Result<Process> find_root(const Finder& finder, std::string_view text,
                                        std::optional<uid_t> user);

/// `text`, as for find_targets() or find_root(), and all descendants: of these, those that have an agent.
/// None is hidden by a parent that has one, or is left out because it may not be asked. At least one of the
/// lists is not empty. Errors: as for find_targets().
[[nodiscard]] Result<Targets> find_tree(Finder& finder, std::string_view text, const Search& search = {});

/// The processes of a group (Report.group); of those that do not answer, their environment says it. Errors:
/// no_process, ambiguous_name, io_failed.
[[nodiscard]] Result<Targets> find_group(Finder& finder, std::string_view group, const Search& search = {});

/// Which processes a joint request is for.
struct Membership {
    std::vector<pid_t> roots; ///< of trees
    std::string group;        ///< empty where there are roots
    std::optional<uid_t> user = {};
};
/// A process with an agent that belongs to them and is none of `known`, if there is one. Asks no agent.
/// Errors: io_failed.
[[nodiscard]] Result<std::optional<Process>> find_newcomer(const Finder& finder, const Membership& membership,
                                                           const std::vector<Process>& known);

} // namespace gpu_sleep::control
