// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From reports to decisions, and to what is held.

#include "control/policy/look.hpp"

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>
#include <variant>

namespace gpu_sleep::control::policy {
namespace {

/// What the request puts into host memory, at most.
Bytes needed_by(const model::SleepRequest& request, const model::Report& report) {
    Bytes sum = 0;
    for (const auto& tag : report.tags) {
        const auto& chosen = request.tags;
        const bool goes = chosen.empty() || std::find(chosen.begin(), chosen.end(), tag.tag) != chosen.end();
        const bool goes_elsewhere = std::any_of(request.stores.begin(), request.stores.end(),
                                                [&](const auto& each) { return each.tag == tag.tag; });
        const bool is_kept = tag.policy.retention != model::Retention::discard;
        if (!goes || goes_elsewhere || !is_kept) continue;
        // What sleeps in its own memory takes no more, but is copied as it goes deep, from there, too.
        sum += tag.resident + (request.deep ? std::max(tag.host_backed, tag.in_place)
                                            : tag.host_backed - std::min(tag.host_backed, tag.in_place));
    }
    return sum;
}

Holder holder_of(const Seen& seen) {
    const auto& report = seen.report;
    Holder holder{
        seen.process.uid, report.host_bytes + report.retained_bytes, report.retained_bytes, 0, 0, false};
    for (const auto& tag : report.tags) holder.held += tag.host_backed;
    const auto& request = seen.decision.request;
    if (request && request->sleep.store == model::Store::host) {
        const auto needed = needed_by(request->sleep, report);
        holder.incoming = needed - std::min(needed, report.retained_bytes);
        holder.retained = 0; // it is about to be used
    }
    holder.unused_seconds = unused_seconds(report).value_or(0);
    if (!sleeps_in_host_memory(report)) return holder;
    holder.unused_seconds = report.state_seconds;
    holder.can_move = !seen.policy.directory.empty();
    return holder;
}

} // namespace

Result<Look> look(Finder& finder, Policies& policies, const Selection& whom, Milliseconds patience) {
    auto targets = whom.is_for_all() ? find_all(finder, whom.user)
                                     : find_targets(finder, whom.words.front(), {.user = whom.user});
    if (!targets) return std::move(targets).error();
    auto outcomes = ask_each(finder, *std::move(targets), model::StatusRequest(), patience);
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
    return look;
}

void heed_refusals(Finder& finder, std::vector<Seen>& seen, Milliseconds patience) {
    std::vector<Decision*> asked;
    std::deque<protocol::Request> requests;
    std::vector<peers::Question> questions;
    for (auto& each : seen) {
        if (!each.decision.request) continue;
        auto request = *each.decision.request;
        // What the driver alone would add to a sleep, no rehearsal tells.
        if (request.sleep.deep && depth_of(each.report) != Depth::awake) continue;
        auto socket = finder.connect(each.process);
        if (!socket) continue;
        request.sleep.dry_run = true;
        request.sleep.timeout = patience / 2; // to wait for another operation
        asked.push_back(&each.decision);
        questions.push_back({*std::move(socket), &requests.emplace_back(std::move(request)), {patience}});
    }
    const auto answers = peers::ask_all(std::move(questions));
    for (std::size_t i = 0; i < answers.size(); ++i)
        if (!std::holds_alternative<Error>(answers[i]))
            if (auto reason = peers::refusal_in(answers[i]); !reason.empty())
                *asked[i] = {{}, std::move(reason)};
}

std::vector<Holder> holders_of(const std::vector<Seen>& seen) {
    std::vector<Holder> holders;
    std::transform(seen.begin(), seen.end(), std::back_inserter(holders), holder_of);
    return holders;
}

std::vector<Process> processes_of(const Look& look) {
    std::vector<Process> processes;
    std::transform(look.seen.begin(), look.seen.end(), std::back_inserter(processes),
                   [](const Seen& each) { return each.process; });
    return processes;
}

} // namespace gpu_sleep::control::policy
