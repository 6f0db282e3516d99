// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Host memory first, then sleeps.

#include "control/policy/pass.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gpu_sleep::control::policy {
namespace {

std::string whose(const HostPlan::Excess& excess) {
    return excess.user ? user_name(*excess.user) + "'s processes" : "all processes";
}

/// What each of some processes is asked.
using Requests = std::vector<std::pair<Process, protocol::Request>>;

/// What the budgets ask for.
Requests requests_for(const HostPlan& plan, const Look& look) {
    Requests requests;
    for (const auto i : plan.release) requests.emplace_back(look.seen[i].process, model::ReleaseRequest());
    for (const auto i : plan.move)
        requests.emplace_back(look.seen[i].process, request_to_move(look.seen[i].policy.directory));
    return requests;
}

/// What becomes of a process for which the budgets leave no room in host memory.
Decision without_room(Decision decision, const Policy& policy) {
    if (policy.directory.empty())
        return {{}, "it does not fit into the host memory budget, and no directory is set for files"};
    auto& request = decision.request->sleep;
    request.store = model::Store::file;
    request.stores.clear();
    request.spill = false;
    request.directory = policy.directory;
    return decision;
}

/// What the decisions ask for. Those of whom nothing is asked are added to `outcomes`, with the reason,
/// unless they are there.
Requests requests_for(Look& look, const Budgets& budgets, std::vector<Outcome>& outcomes) {
    const auto has_room = find_room(holders_of(look.seen), budgets);
    Requests requests;
    for (std::size_t i = 0; i < look.seen.size(); ++i) {
        auto& [process, report, policy, decision] = look.seen[i];
        if (!has_room[i]) decision = without_room(std::move(decision), policy);
        const auto is_it = [pid = process.pid](const Outcome& each) { return each.process.pid == pid; };
        if (decision.request) {
            requests.emplace_back(std::move(process), *std::move(decision.request));
        } else if (std::none_of(outcomes.begin(), outcomes.end(), is_it)) {
            report.operation = model::Operation::sleep;
            report.devices.clear(); // of the look: nothing has moved
            report.refusal = decision.reason;
            report.notes.insert(report.notes.begin(), decision.reason);
            outcomes.push_back({std::move(process), std::move(report)});
        }
    }
    return requests;
}

void carry_out(const PassRequest& pass, Finder& finder, Requests requests, Clock::time_point end,
               std::vector<Outcome>& outcomes) {
    std::vector<Task> tasks;
    for (auto& [process, request] : requests) {
        auto& terms = *model::terms_in(request);
        terms.dry_run = pass.dry_run;
        terms.bounds_all = pass.timeout.has_value();
        terms.timeout = pass.timeout.value_or(terms.timeout);
        tasks.push_back({{std::move(process), {}}, &request});
    }
    Listener nobody;
    Interruptions none;
    Manner manner;
    if (!pass.timeout) manner.end = end;
    auto done = control::carry_out(finder, std::move(tasks), manner, nobody, none);
    if (pass.whom.is_for_all()) drop_ended(done);
    std::move(done.begin(), done.end(), std::back_inserter(outcomes));
}

} // namespace

Result<Passed> pass(const PassRequest& request, Policies& policies) {
    Finder finder;
    const auto start = Clock::now();
    const auto patience = request.timeout.value_or(k_patience_of_look);
    auto found = look(finder, policies, request.whom, patience);
    if (!found) return std::move(found).error();
    const auto budgets = policies.budgets(processes_of(*found));
    const auto plan = plan_host_memory(holders_of(found->seen), budgets);
    auto requests = requests_for(plan, *found);
    const bool gives_back = !requests.empty();
    Passed passed;
    carry_out(request, finder, std::move(requests), start + request.limit / 4, passed.outcomes);
    for (const auto& excess : plan.left)
        passed.errors.push_back(make_error(
            ErrorCode::out_of_host_memory,
            "cannot keep to the budget of {} for the host memory of {}: {} would still be held, and "
            "nothing is left to give back or to move to a directory",
            format_bytes(excess.budget), whose(excess), format_bytes(excess.held)));
    if (gives_back && !request.dry_run) found = look(finder, policies, request.whom, patience);
    if (!found) {
        passed.failure = std::move(found).error();
        return passed;
    }
    requests = requests_for(*found, budgets, passed.outcomes);
    std::move(found->failed.begin(), found->failed.end(), std::back_inserter(passed.outcomes));
    carry_out(request, finder, std::move(requests), start + request.limit, passed.outcomes);
    return passed;
}

} // namespace gpu_sleep::control::policy
