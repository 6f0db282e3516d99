// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From what a person typed to connections.

#include "control/targets.hpp"

#include "base/text.hpp"
#include "model/environment.hpp"

#include <fmt/format.h>

#include <iterator>
#include <set>

namespace gpu_sleep::control {
namespace {

/// The name that the process was started under, as long as it has not given itself another. Asks no agent.
std::string given_name(const ProcFs& proc, pid_t pid) {
    auto name = proc.variable(pid, model::environment::k_name);
    if (!name || !model::is_valid_name(*name)) return {};
    const auto thread = proc.find_thread(pid, k_control_thread);
    return thread && thread->second != k_control_thread ? std::string() : *std::move(name);
}

/// Whether the process has an agent, which anybody may see, and does not end.
bool has_live_agent(const Finder& finder, pid_t pid) {
    const auto thread = finder.proc().find_thread(pid, k_control_thread);
    return thread && thread->second != k_control_thread_ending;
}

/// Connects to those of `processes` that have an agent. `is_joint`: each that shows an agent's thread and
/// cannot be asked is among the unreached, whatever the reason. Errors: io_failed.
Result<Targets> connect_to_those_with_agents(Finder& finder, std::vector<Process> processes,
                                             bool is_joint = false) {
    Targets targets;
    for (auto& process : processes) {
        auto socket = finder.connect(process);
        if (!socket && lacks_descriptors(socket.error().driver_status))
            return std::move(socket).error(); // rather none than some, and nobody the wiser
        const auto code = socket ? std::optional<ErrorCode>() : socket.error().code;
        if (code && code != ErrorCode::timed_out && code != ErrorCode::agent_unreachable &&
            !(is_joint && has_live_agent(finder, process.pid)))
            continue; // as most of a machine's processes
        if (process.name.empty()) identify(finder.proc(), process);
        if (socket)
            targets.reached.push_back({std::move(process), *std::move(socket)});
        else
            targets.unreached.push_back({std::move(process), std::move(socket).error()});
    }
    return targets;
}

/// Whether the process was started under `name`, or in the group of that name, as `variable` has it.
bool was_named(const Finder& finder, const Process& process, const char* variable, std::string_view name) {
    const auto given = finder.proc().variable(process.pid, variable);
    return given && model::is_valid_name(*given) && *given == name;
}

Result<Targets> find_by_pid(Finder& finder, std::string_view text, std::optional<uid_t> user) {
    auto process = GPU_SLEEP_TRY(find_process(finder, text, user));
    auto socket = finder.connect(process);
    if (socket) {
        Targets targets;
        targets.reached.push_back({std::move(process), *std::move(socket)});
        return targets;
    }
    if (socket.error().code != ErrorCode::no_agent) return std::move(socket).error();
    if (process.inner_pid == 1) {
        auto error = std::move(socket).error();
        error.message += "; gpu-ps lists its child processes, and gpu-sleep --tree and gpu-wake --tree "
                         "select them all";
        return error;
    }
    const auto processes = GPU_SLEEP_TRY(finder.proc().list());
    auto descendants = descendants_of(process.pid, processes);
    if (user) std::erase_if(descendants, [=](const Process& each) { return each.uid != *user; });
    auto targets = connect_to_those_with_agents(finder, std::move(descendants));
    if (targets && targets->is_empty()) return std::move(socket).error();
    return targets;
}

/// Whether the process has begun to end, and so is nobody any more.
bool is_ending(const Finder& finder, const Process& process) {
    return !finder.proc().is_running(process) ||
           finder.proc().find_thread(process.pid, k_control_thread_ending).has_value();
}

Error unnamed(std::string_view name, const Error& reason) {
    auto error = reason;
    error.message = fmt::format("it may be named '{}', but cannot be asked: {}", name, reason.message);
    return error;
}

/// "4711 (llama) of ann, 4712 (llama) of bob", with their users and the option for those if they differ, and
/// what else tells them apart.
std::string listed(const std::vector<Process>& processes, bool has_users) {
    constexpr std::size_t k_max = 10;
    std::string list;
    for (std::size_t i = 0; i < std::min(processes.size(), k_max); ++i) {
        const auto whose = has_users ? " of " + user_name(processes[i].uid) : std::string();
        const auto origin = to_word(processes[i].origin);
        list += fmt::format("{}{}{}{}", i == 0 ? "" : ", ", title(processes[i]), whose,
                            origin.empty() ? "" : ": " + origin);
    }
    if (processes.size() > k_max) list += fmt::format(", and {} more", processes.size() - k_max);
    return has_users ? list + "; choose one user's with --user" : list;
}

bool are_of_several_users(const std::vector<Process>& processes) {
    return std::ranges::any_of(processes,
                               [&](const Process& each) { return each.uid != processes.front().uid; });
}

/// A program's name is no choice: whoever types it may not know that there are several. Errors:
/// ambiguous_name.
Result<void> check_only_one(std::string_view name, const std::vector<Process>& called) {
    if (called.size() < 2) return {};
    return make_error(ErrorCode::ambiguous_name, "{} processes are called '{}': {}", called.size(), name,
                      listed(called, are_of_several_users(called)));
}

/// A name is anybody's to take, so it does not choose between users. Errors: ambiguous_name.
Result<void> check_of_one_user(std::string_view name, const std::vector<Process>& named) {
    if (!are_of_several_users(named)) return {};
    return make_error(ErrorCode::ambiguous_name, "processes of several users are named '{}': {}", name,
                      listed(named, true));
}

/// " of ann", where only processes of that user are asked for.
std::string whose(std::optional<uid_t> user) {
    return user ? " of " + user_name(*user) : std::string();
}

/// Whether this user may ask the process, and it is of `user` if that is set.
bool is_ours(const Process& process, std::optional<uid_t> user) {
    const auto own = ::geteuid();
    return (own == 0 || process.uid == own) && (!user || process.uid == *user);
}

bool is_among(const Process& process, const std::vector<Process>& all) {
    return std::ranges::any_of(all, [&](const Process& each) {
        return each.pid == process.pid && each.start_time == process.start_time;
    });
}

Result<Targets> find_by_name(Finder& finder, std::string_view name, const Search& search) {
    std::vector<Process> named;
    std::vector<Process> called; // by their programs
    std::vector<Outcome> doubtful;
    auto outcomes = GPU_SLEEP_TRY(ask_all(finder, search.user, search.name_timeout));
    drop_ended(outcomes);
    for (auto& outcome : outcomes) {
        if (is_called(outcome.process.program, name)) called.push_back(outcome.process);
        if (const auto* report = std::get_if<model::Report>(&outcome.answer)) {
            if (report->name == name) named.push_back(std::move(outcome.process));
            continue;
        }
        const auto& reason = *client::error_of(outcome.answer);
        const auto thread = finder.proc().find_thread(outcome.process.pid, k_control_thread);
        if (!thread || thread->second != k_control_thread) { // it may have given itself another name since
            // Asked last: who ends loses its thread, or that thread's name, first.
            if (!is_ending(finder, outcome.process))
                doubtful.push_back({std::move(outcome.process), unnamed(name, reason)});
        } else if (was_named(finder, outcome.process, model::environment::k_name, name))
            named.push_back(std::move(outcome.process));
    }
    auto either = named;
    for (const auto& process : called)
        if (!is_among(process, named)) either.push_back(process);
    if (!search.takes_several)
        GPU_SLEEP_TRY(named.empty() ? check_only_one(name, either) : check_of_one_user(name, either));
    if (search.takes_several || named.empty()) { // else a name that was given goes before a program's
        std::erase_if(doubtful, [&](const Outcome& each) { return is_among(each.process, called); });
        named = std::move(either);
    }
    auto targets = connect_to_those_with_agents(finder, std::move(named));
    if (!targets) return targets;
    std::move(doubtful.begin(), doubtful.end(), std::back_inserter(targets->unreached));
    if (!targets->is_empty()) return targets;
    auto process = GPU_SLEEP_TRY(find_process_without_agent(finder, name, search.user));
    auto socket = GPU_SLEEP_TRY(finder.connect(process));
    targets->reached.push_back({std::move(process), std::move(socket)}); // its agent has just started
    return targets;
}

/// Leaves of `processes` those that are a root, or descend from one.
void keep_trees(const std::vector<pid_t>& roots, std::vector<Process>& processes) {
    std::set<pid_t> members(roots.begin(), roots.end());
    for (const auto root : roots)
        for (const auto& each : descendants_of(root, processes)) members.insert(each.pid);
    std::erase_if(processes, [&](const Process& each) { return !members.contains(each.pid); });
}

/// Returns a suggestion for a name that no process has: as a question, or how to list a user's processes.
std::string suggestion(const Finder& finder, const std::vector<Process>& processes, std::string_view text,
                       std::optional<uid_t> user) {
    if (text.starts_with('-') && model::is_number(text.substr(1))) return fmt::format(": {} is no pid", text);
    std::set<std::string> names;
    for (const auto& process : processes)
        if (is_ours(process, user) && has_live_agent(finder, process.pid)) {
            if (auto name = given_name(finder.proc(), process.pid); !name.empty())
                names.insert(std::move(name));
            names.insert(process.program.script.empty() ? process.program.program : process.program.script);
        }
    const std::vector<std::string_view> known(names.begin(), names.end());
    if (const auto meant = nearest(text, known); !meant.empty())
        return fmt::format(": did you mean '{}'?", meant);
    const bool is_user = parse_user(std::string(text)).has_value();
    return is_user ? fmt::format(", but a user: gpu-ps --user {} lists that user's processes", text) : "";
}

/// The process that `text` names and that no other of them has started: one without an agent, or any.
Result<Process> find_topmost(const Finder& finder, std::string_view text, std::optional<uid_t> user,
                             bool is_without_agent) {
    const auto processes = GPU_SLEEP_TRY(finder.proc().list());
    std::vector<Process> found;
    bool is_of_others = false;
    for (const auto& process : processes) {
        if (process.pid == ::getpid()) continue;
        if (!is_ours(process, user)) {
            is_of_others |= !user && is_called(process.program, text);
            continue;
        }
        const bool is_named = was_named(finder, process, model::environment::k_name, text);
        if (!is_named && !is_called(process.program, text)) continue;
        if (is_without_agent && finder.proc().find_thread(process.pid, k_control_thread)) continue;
        found.push_back(process);
        identify(finder.proc(), found.back());
    }
    std::set<pid_t> below;
    for (const auto& process : found)
        for (const auto& descendant : descendants_of(process.pid, found)) below.insert(descendant.pid);
    std::erase_if(found, [&](const Process& each) { return below.contains(each.pid); });
    if (found.empty())
        return make_error(ErrorCode::no_process, "there is no process{} named '{}'{}",
                          is_of_others ? " of yours" : whose(user), text,
                          suggestion(finder, processes, text, user));
    GPU_SLEEP_TRY(check_only_one(text, found));
    return std::move(found.front());
}

} // namespace

Result<Targets> find_targets(Finder& finder, std::string_view text, const Search& search) {
    if (text.empty()) return make_error(ErrorCode::invalid_argument, "the pid or name is empty");
    return model::is_number(text) ? find_by_pid(finder, text, search.user)
                                  : find_by_name(finder, text, search);
}

Result<void> add_found(Finder& finder, const std::vector<std::string>& words, std::string_view word,
                       Result<Targets> found, Targets& all) {
    if (!found) {
        auto failure = found.error();
        if (words.size() > 1) failure.message += "; nothing was changed";
        if (words.size() == 1 || !model::is_number(word)) return failure;
        const auto pid = parse_number<pid_t>(word);
        if (!pid)
            return make_error(ErrorCode::invalid_argument, "'{}' is no process id; nothing was changed",
                              word);
        Process process;
        process.pid = *pid;
        if (auto known = finder.proc().read(*pid)) process = *std::move(known);
        auto error = std::move(found).error();
        found = Targets{};
        found->unreached.push_back({std::move(process), std::move(error)});
    }
    for (auto& target : found->reached)
        if (!all.contains(target.process)) all.reached.push_back(std::move(target));
    for (auto& outcome : found->unreached)
        if (!all.contains(outcome.process)) all.unreached.push_back(std::move(outcome));
    return {};
}

void disconnect(Targets& targets) noexcept {
    for (auto& target : targets.reached) target.socket.reset();
}

Result<Targets> find_each(Finder& finder, const std::vector<std::string>& words, const Search& search) {
    Targets all;
    for (const auto& word : words)
        GPU_SLEEP_TRY(add_found(finder, words, word, find_targets(finder, word, search), all));
    if (words.size() > 1) disconnect(all);
    return all;
}

void identify(const ProcFs& proc, Process& process) {
    process.name = given_name(proc, process.pid);
    // The owner of a process can write anything there.
    const auto bounded = [](std::string text) {
        constexpr std::size_t k_longest = 120;
        return text.size() > k_longest ? text.substr(0, k_longest) + "..." : text;
    };
    process.origin.notebook =
        bounded(proc.variable(process.pid, model::environment::k_notebook).value_or(""));
    process.origin.kernel = bounded(kernel_in(process.command));
    process.origin.job = bounded(proc.variable(process.pid, model::environment::k_job).value_or(""));
    const auto groups = proc.control_groups(process.pid);
    process.origin.unit = bounded(unit_in(groups));
    process.origin.container = short_container_in(groups);
    process.origin.pod = pod_in(groups);
}

Result<Process> find_process(const Finder& finder, std::string_view text, std::optional<uid_t> user) {
    const auto pid = parse_number<pid_t>(text);
    if (!pid) return make_error(ErrorCode::no_process, "there is no process {}", text);
    auto process = finder.proc().read(*pid);
    if (process) identify(finder.proc(), *process);
    if (!process || !user || process->uid == *user) return process;
    return make_error(ErrorCode::no_process, "process {} belongs to {}, not to {}", title(*process),
                      user_name(process->uid), user_name(*user));
}

Result<Process> find_process_without_agent(const Finder& finder, std::string_view text,
                                           std::optional<uid_t> user) {
    return model::is_number(text) ? find_process(finder, text, user) : find_topmost(finder, text, user, true);
}

Result<Targets> find_all(Finder& finder, std::optional<uid_t> user) {
    auto processes = GPU_SLEEP_TRY(finder.proc().list());
    std::erase_if(processes, [=](const Process& process) { return !is_ours(process, user); });
    return connect_to_those_with_agents(finder, std::move(processes));
}

Result<std::vector<Outcome>> ask_all(Finder& finder, std::optional<uid_t> user, Milliseconds timeout) {
    auto all = GPU_SLEEP_TRY(find_all(finder, user));
    return ask_each(finder, std::move(all), model::StatusRequest(), timeout);
}

// ---- Those that go together

Result<Process> find_root(const Finder& finder, std::string_view text, std::optional<uid_t> user) {
    return model::is_number(text) ? find_process(finder, text, user)
                                  : find_topmost(finder, text, user, false);
}

Result<Targets> find_tree(Finder& finder, std::string_view text, const Search& search) {
    std::vector<pid_t> roots;
    std::optional<Error> why_none;
    auto named = model::is_number(text) ? Result<Targets>(Error{ErrorCode::no_agent, {}, {}})
                                        : find_targets(finder, text, search);
    if (!named && (named.error().code == ErrorCode::no_agent ||
                   named.error().code == ErrorCode::ambiguous_name)) { // of what a launcher has started
        const auto root = GPU_SLEEP_TRY(find_root(finder, text, search.user));
        roots.push_back(root.pid);
        why_none = make_error(
            ErrorCode::no_agent,
            "there is no agent in process {}, or below it: start it with gpu-run or after gpu-enable",
            title(root));
    } else {
        if (!named || !named->unreached.empty()) return named;
        for (const auto& each : named->reached) roots.push_back(each.process.pid);
        why_none = make_error(ErrorCode::no_process, "the processes named '{}' have ended", text);
    }
    auto members = GPU_SLEEP_TRY(finder.proc().list());
    keep_trees(roots, members);
    if (search.user) std::erase_if(members, [&](const Process& each) { return each.uid != *search.user; });
    auto targets = connect_to_those_with_agents(finder, std::move(members), true);
    if (targets && targets->is_empty()) return *std::move(why_none);
    return targets;
}

Result<Targets> find_group(Finder& finder, std::string_view group, const Search& search) {
    std::vector<Process> members;
    std::set<std::string> others;
    auto outcomes = GPU_SLEEP_TRY(ask_all(finder, search.user, search.name_timeout));
    drop_ended(outcomes);
    for (auto& outcome : outcomes) {
        const auto* report = std::get_if<model::Report>(&outcome.answer);
        const bool belongs = report ? report->group == group
                                    : was_named(finder, outcome.process, model::environment::k_group, group);
        if (belongs) members.push_back(std::move(outcome.process));
        if (!belongs && report && !report->group.empty()) others.insert(report->group);
    }
    GPU_SLEEP_TRY(check_of_one_user(group, members));
    auto targets = connect_to_those_with_agents(finder, std::move(members), true);
    if (!targets || !targets->is_empty()) return targets;
    return make_error(
        ErrorCode::no_process, "there is no process{} in the group '{}'{}{}", whose(search.user), group,
        others.empty() ? "" : "; other groups: ", printable(fmt::format("{}", fmt::join(others, ", "))));
}

Result<std::optional<Process>> find_newcomer(const Finder& finder, const Membership& membership,
                                             const std::vector<Process>& known) {
    auto processes = GPU_SLEEP_TRY(finder.proc().list());
    if (membership.group.empty())
        keep_trees(membership.roots, processes);
    else
        std::erase_if(processes, [&](const Process& each) {
            return !was_named(finder, each, model::environment::k_group, membership.group);
        });
    for (auto& process : processes) {
        if (membership.user && process.uid != *membership.user) continue;
        if (is_among(process, known)) continue;
        if (has_live_agent(finder, process.pid)) return std::optional(std::move(process));
    }
    return std::optional<Process>();
}

} // namespace gpu_sleep::control
