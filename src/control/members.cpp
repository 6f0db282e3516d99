// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding the processes of trees and groups.

#include "control/members.hpp"

#include "model/environment.hpp"

#include <algorithm>
#include <iterator>

namespace gpu_sleep::control {
namespace {

/// Whether the process has an agent, which anybody may see, and does not end.
bool has_live_agent(const Finder& finder, pid_t pid) {
    const auto thread = finder.proc().find_thread(pid, k_control_thread);
    return thread && thread->second != k_control_thread_ending;
}

/// Adds to `targets` those of `processes` that have an agent and are not among them. Errors: io_failed.
Result<void> add_all_with_agents(Finder& finder, std::vector<Process> processes, Targets& targets) {
    for (auto& process : processes) {
        if (targets.contains(process)) continue;
        auto socket = finder.connect(process);
        if (socket) {
            if (process.name.empty()) identify(finder.proc(), process);
            targets.reached.push_back({std::move(process), *std::move(socket)});
            continue;
        }
        auto error = std::move(socket).error();
        if (lacks_descriptors(error.driver_status)) return error;
        const bool has_agent =
            error.code == ErrorCode::timed_out || error.code == ErrorCode::agent_unreachable ||
            (error.code == ErrorCode::not_permitted && has_live_agent(finder, process.pid));
        if (!has_agent) continue;
        if (process.name.empty()) identify(finder.proc(), process);
        targets.unreached.push_back({std::move(process), std::move(error)});
    }
    return {};
}

/// Those of `processes` that are a root, or descend from one.
std::vector<Process> trees_of(const std::vector<pid_t>& roots, const std::vector<Process>& processes) {
    std::vector<Process> all;
    for (const auto root : roots) {
        const auto descendants = descendants_of(root, processes);
        std::copy_if(processes.begin(), processes.end(), std::back_inserter(all),
                     [=](const Process& each) { return each.pid == root; });
        all.insert(all.end(), descendants.begin(), descendants.end());
    }
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
    all.erase(
        std::unique(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.pid == b.pid; }),
        all.end());
    return all;
}

} // namespace

Result<Targets> find_tree(Finder& finder, std::string_view text, const Search& search) {
    std::vector<pid_t> roots;
    std::optional<Error> why_none;
    if (model::is_number(text)) {
        const auto root = find_process(finder, text, search.user);
        if (!root) return root.error();
        roots.push_back(root->pid);
        why_none =
            make_error(ErrorCode::no_agent, "there is no agent in process {}, or below it", title(*root));
    } else {
        auto named = find_targets(finder, text, search);
        if (!named || !named->unreached.empty()) return named;
        for (const auto& each : named->reached) roots.push_back(each.process.pid);
        why_none = make_error(ErrorCode::no_process, "the processes named '{}' have ended", text);
    }
    const auto processes = finder.proc().list();
    if (!processes) return processes.error();
    auto members = trees_of(roots, *processes);
    if (search.user) std::erase_if(members, [&](const Process& each) { return each.uid != *search.user; });
    Targets targets;
    GPU_SLEEP_TRY(add_all_with_agents(finder, std::move(members), targets));
    if (targets.is_empty()) return *std::move(why_none);
    return targets;
}

Result<Targets> find_group(Finder& finder, std::string_view group, const Search& search) {
    std::vector<Process> members;
    auto outcomes = ask_all(finder, search.user, search.name_timeout);
    if (!outcomes) return std::move(outcomes).error();
    drop_ended(*outcomes);
    for (auto& outcome : *outcomes) {
        const auto* report = std::get_if<model::Report>(&outcome.answer);
        const bool belongs = report ? report->group == group
                                    : was_named(finder, outcome.process, model::environment::k_group, group);
        if (belongs) members.push_back(std::move(outcome.process));
    }
    GPU_SLEEP_TRY(check_of_one_user(group, members));
    Targets targets;
    GPU_SLEEP_TRY(add_all_with_agents(finder, std::move(members), targets));
    if (!targets.is_empty()) return targets;
    const auto whose = search.user ? " of " + user_name(*search.user) : std::string();
    return make_error(ErrorCode::no_process, "there is no process{} in the group '{}'", whose, group);
}

Result<std::optional<Process>> find_newcomer(const Finder& finder, const Membership& membership,
                                             const std::vector<Process>& known) {
    auto processes = finder.proc().list();
    if (!processes) return std::move(processes).error();
    if (membership.group.empty())
        *processes = trees_of(membership.roots, *processes);
    else
        std::erase_if(*processes, [&](const Process& each) {
            return !was_named(finder, each, model::environment::k_group, membership.group);
        });
    for (auto& process : *processes) {
        if (membership.user && process.uid != *membership.user) continue;
        const auto is_it = [&](const Process& each) {
            return each.pid == process.pid && each.start_time == process.start_time;
        };
        if (std::any_of(known.begin(), known.end(), is_it)) continue;
        if (has_live_agent(finder, process.pid)) return std::optional(std::move(process));
    }
    return std::optional<Process>();
}

} // namespace gpu_sleep::control
