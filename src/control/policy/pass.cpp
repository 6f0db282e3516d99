// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking, deciding, and asking for it.

#include "control/policy/pass.hpp"

#include <iterator>

namespace gpu_sleep::control::policy {
namespace {

/// Returns how much the request puts into host memory at most.
Bytes needed_by(const model::SleepRequest& request, const model::Report& report) {
    Bytes sum = 0;
    for (const auto& tag : report.tags) {
        const auto& chosen = request.tags;
        const bool goes = chosen.empty() || std::ranges::find(chosen, tag.tag) != chosen.end();
        const bool goes_elsewhere =
            std::ranges::any_of(request.stores, [&](const auto& each) { return each.tag == tag.tag; });
        const bool is_kept = tag.policy.retention != model::Retention::discard;
        if (!goes || goes_elsewhere || !is_kept) continue;
        // A tag that runs from host memory sleeps in it and takes no more. As it goes deep, its contents are
        // copied, too.
        sum += tag.resident + (request.deep ? std::max(tag.host_backed, tag.in_place)
                                            : tag.host_backed - std::min(tag.host_backed, tag.in_place));
    }
    return sum;
}

/// Returns what is held by a process that is asked for nothing.
Holder holder_of(const Process& process, const model::Report& report) {
    Holder holder{process.uid, report.host_bytes + report.retained_bytes};
    for (const auto& tag : report.tags) holder.held += tag.host_backed;
    return holder;
}

Holder holder_of(const Seen& seen) {
    const auto& report = seen.report;
    auto holder = holder_of(seen.process, report);
    holder.retained = report.retained_bytes;
    const auto& request = seen.decision.request;
    if (request && request->sleep.store == model::Store::host)
        holder.incoming = needed_by(request->sleep, report);
    holder.unused_seconds = unused_seconds(report).value_or(0);
    if (!sleeps_in_host_memory(report)) return holder;
    holder.unused_seconds = report.state_seconds;
    holder.can_move = !seen.policy.directory.empty();
    return holder;
}

Budgets budgets_of(const std::vector<Seen>& seen, Policies& policies) {
    std::vector<Process> processes;
    std::ranges::transform(seen, std::back_inserter(processes), &Seen::process);
    return policies.budgets(processes);
}

/// Returns what processes hold that are not in `look`, as far as they answer.
std::vector<Holder> others_than(const Look& look, Finder& finder, Milliseconds patience) {
    std::vector<Holder> others;
    const auto all = ask_all(finder, std::nullopt, patience);
    if (!all) return others;
    for (const auto& other : *all) {
        const auto* const report = std::get_if<model::Report>(&other.answer);
        const auto is_it = [&](const Seen& each) { return each.process.pid == other.process.pid; };
        if (report && std::ranges::none_of(look.seen, is_it))
            others.push_back(holder_of(other.process, *report));
    }
    return others;
}

std::string whose(const HostPlan::Excess& excess) {
    return excess.user ? user_name(*excess.user) + "'s processes" : "all processes";
}

/// The requests for some processes.
using Requests = std::vector<std::pair<Process, protocol::Request>>;

/// Returns the requests that the budgets call for.
Requests requests_for(const HostPlan& plan, const Look& look) {
    Requests requests;
    for (const auto i : plan.release) requests.emplace_back(look.seen[i].process, model::ReleaseRequest());
    for (const auto i : plan.move)
        requests.emplace_back(look.seen[i].process, request_to_move(look.seen[i].policy.directory));
    return requests;
}

/// Changes the decision for a process for which the budgets leave no room in host memory.
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

/// Returns the requests of the decisions. Processes that get none are added to `outcomes`, with the reason,
/// unless they are there.
Requests requests_for(Look& look, std::vector<Outcome>& outcomes) {
    Requests requests;
    for (auto& [process, report, policy, decision] : look.seen) {
        const auto is_it = [pid = process.pid](const Outcome& each) { return each.process.pid == pid; };
        if (decision.request) {
            requests.emplace_back(std::move(process), *std::move(decision.request));
        } else if (std::ranges::none_of(outcomes, is_it)) {
            report.operation = model::Operation::sleep;
            report.devices.clear(); // of the look: nothing has moved
            report.refusal = decision.reason;
            report.notes.insert(report.notes.begin(), decision.reason);
            outcomes.push_back({std::move(process), std::move(report)});
        }
    }
    return requests;
}

/// The processes that are asked to use a directory that only the user's file names, although the
/// administrator's says when they sleep; with their users.
std::map<pid_t, uid_t> users_places(const Look& look) {
    std::map<pid_t, uid_t> users;
    for (const auto& [process, report, policy, decision] : look.seen) {
        const auto& said_by = policy.grounds.said_by; // the administrator's settings
        const bool uses_place = decision.request && !decision.request->sleep.directory.empty();
        if (uses_place && said_by.contains("idle") && !said_by.contains("directory"))
            users[process.pid] = process.uid;
    }
    return users;
}

/// Whether a sleep failed because of its directory.
bool cannot_write(const Outcome& outcome) {
    const auto* const error = client::error_of(outcome.answer);
    return error && (error->code == ErrorCode::io_failed || error->code == ErrorCode::not_permitted ||
                     error->code == ErrorCode::out_of_disk);
}

void carry_out(const PassRequest& pass, Finder& finder, Requests requests, Clock::time_point end,
               std::vector<Outcome>& outcomes) {
    std::vector<Task> tasks;
    for (auto& [process, request] : requests) {
        auto& terms = *model::terms_in(request);
        terms.dry_run = pass.dry_run;
        terms.asker = "gpu-reclaim";
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

Result<Look> look(Finder& finder, Policies& policies, const Selection& whom, Milliseconds patience) {
    auto targets =
        GPU_SLEEP_TRY(whom.is_for_all() ? find_all(finder, whom.user)
                                        : find_targets(finder, whom.words.front(), {.user = whom.user}));
    auto outcomes = ask_each(finder, std::move(targets), model::StatusRequest(), patience);
    if (whom.is_for_all()) drop_ended(outcomes);
    Look look;
    for (auto& outcome : outcomes) {
        auto& process = outcome.process;
        auto* const report = std::get_if<model::Report>(&outcome.answer);
        if (!report) {
            look.failed.push_back(std::move(outcome));
            continue;
        }
        auto policy = policies.of(process, report->name);
        auto decision = decide(policy, *report);
        if (decision)
            look.seen.push_back(
                {std::move(process), std::move(*report), std::move(policy), *std::move(decision)});
        else
            look.failed.push_back(
                {std::move(process), model::Failure{std::move(decision).error(), report->state}});
    }
    look.budgets = budgets_of(look.seen, policies);
    const bool has_all = whom.is_for_all() && !whom.user;
    if (!has_all && (look.budgets.machine || !look.budgets.users.empty()))
        look.others = others_than(look, finder, patience);
    return look;
}

void heed_refusals(Finder& finder, std::vector<Seen>& seen, Milliseconds patience) {
    std::vector<Decision*> asked;
    std::deque<protocol::Request> requests;
    std::vector<client::Question> questions;
    for (auto& each : seen) {
        if (!each.decision.request) continue;
        auto request = *each.decision.request;
        // No rehearsal tells what only the driver would add to a sleep.
        if (request.sleep.deep && tier_of(each.report) != Tier::awake) continue;
        auto socket = finder.connect(each.process);
        if (!socket) continue;
        request.sleep.dry_run = true;
        request.sleep.timeout = patience / 2; // to wait for another operation
        asked.push_back(&each.decision);
        questions.push_back({*std::move(socket), &requests.emplace_back(std::move(request)), {patience}});
    }
    const auto answers = client::ask_all(std::move(questions));
    for (std::size_t i = 0; i < answers.size(); ++i)
        if (!std::holds_alternative<Error>(answers[i]))
            if (auto reason = client::refusal_in(answers[i]); !reason.empty())
                *asked[i] = {{}, std::move(reason)};
}

void heed_room(std::vector<Seen>& seen, const std::vector<bool>& has_room) {
    for (std::size_t i = 0; i < seen.size(); ++i)
        if (!has_room[i]) seen[i].decision = without_room(std::move(seen[i].decision), seen[i].policy);
}

std::vector<Holder> holders_of(const Look& look) {
    std::vector<Holder> holders;
    std::ranges::transform(look.seen, std::back_inserter(holders),
                           [](const Seen& each) { return holder_of(each); });
    holders.insert(holders.end(), look.others.begin(), look.others.end());
    return holders;
}

Result<Passed> pass(const PassRequest& request, Policies& policies) {
    Finder finder;
    const auto start = Clock::now();
    const auto patience = request.timeout.value_or(k_patience_of_look);
    auto found = look(finder, policies, request.whom, patience);
    if (!found) return std::move(found).error();
    const auto spared = request.spare ? request.spare(found->seen) : std::set<pid_t>();
    std::set<pid_t> told; // whose sleep was announced
    for (const auto& seen : found->seen)
        if (seen.decision.request) told.insert(seen.process.pid);
    auto plan = plan_host_memory(holders_of(*found), found->budgets);
    for (auto* const chosen : {&plan.release, &plan.move})
        std::erase_if(*chosen, [&](auto i) { return spared.contains(found->seen[i].process.pid); });
    auto requests = requests_for(plan, *found);
    const bool gives_back = !requests.empty();
    Passed passed;
    carry_out(request, finder, std::move(requests), start + request.limit / 4, passed.outcomes);
    auto selected = holders_of(*found);
    selected.resize(found->seen.size()); // what others hold beyond a budget is no failure of this pass
    for (const auto& excess : plan_host_memory(selected, found->budgets).left)
        passed.errors.push_back(make_error(
            ErrorCode::out_of_host_memory,
            "cannot keep to the budget of {} for the host memory of {}: {} would still be held, and "
            "the selected processes have nothing left to give back or to move to a directory",
            format_bytes(excess.budget), whose(excess), format_bytes(excess.held)));
    if (gives_back && !request.dry_run) found = look(finder, policies, request.whom, patience);
    if (!found) {
        passed.failure = std::move(found).error();
        return passed;
    }
    for (auto& seen : found->seen)
        if (spared.contains(seen.process.pid))
            seen.decision = {{}, "the notify program keeps it awake in this pass"};
        else if (request.spare && gives_back && seen.decision.request && !told.contains(seen.process.pid))
            seen.decision = {{}, "the next pass tells the notify program about it first"};
    heed_room(found->seen, request.dry_run ? plan.has_room : find_room(holders_of(*found), found->budgets));
    const auto places = users_places(*found);
    requests = requests_for(*found, passed.outcomes);
    std::move(found->failed.begin(), found->failed.end(), std::back_inserter(passed.outcomes));
    carry_out(request, finder, std::move(requests), start + request.limit, passed.outcomes);
    std::set<pid_t> again;
    for (const auto& outcome : passed.outcomes)
        if (places.contains(outcome.process.pid) && cannot_write(outcome)) {
            policies.drop_wishes(places.at(outcome.process.pid));
            again.insert(outcome.process.pid);
        }
    if (!again.empty()) found = look(finder, policies, request.whom, patience);
    if (again.empty() || !found) return passed;
    heed_room(found->seen, find_room(holders_of(*found), found->budgets));
    std::erase_if(found->seen, [&](const Seen& seen) { return !again.contains(seen.process.pid); });
    carry_out(request, finder, requests_for(*found, passed.outcomes), start + request.limit, passed.outcomes);
    return passed;
}

} // namespace gpu_sleep::control::policy
