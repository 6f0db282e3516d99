// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From rungs to requests.

#include "control/policy/decision.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace gpu_sleep::control::policy {
namespace {

bool is_asleep(const model::Report& report) noexcept {
    return report.state == model::State::asleep || report.state == model::State::damaged;
}

/// What the rung asks of a process.
model::IdleSleepRequest request_for(const Rung& rung, const std::string& directory) {
    auto request = rung.depth < Depth::file || directory.empty() ? model::IdleSleepRequest()
                                                                 : request_to_move(directory);
    request.only_if_idle = rung.idle;
    request.sleep.deep = rung.depth == Depth::deep;
    return request;
}

/// The tags of the process, each once.
std::vector<std::string> tags_of(const model::Report& report) {
    std::vector<std::string> names;
    for (const auto& tag : report.tags)
        if (std::find(names.begin(), names.end(), tag.tag) == names.end()) names.push_back(tag.tag);
    return names;
}

/// Leaves out the tags that are exempt, and has the others in their stores. False if none is left.
bool heed_tags(const Policy& policy, const std::vector<std::string>& names, model::SleepRequest& request) {
    bool has_exempt = false;
    std::vector<std::string> left;
    for (const auto& name : names) {
        const auto found = policy.tags.find(name);
        const auto tag = found == policy.tags.end() ? TagSettings() : found->second;
        if (tag.exempt.value_or(false)) {
            has_exempt = true;
            continue;
        }
        left.push_back(name);
        const bool is_moved = request.store == model::Store::file;
        if (tag.store == model::Store::file && !is_moved) request.stores.push_back({name, *tag.store});
    }
    if (has_exempt) request.tags = left;
    return !has_exempt || !left.empty();
}

} // namespace

bool sleeps_in_host_memory(const model::Report& report) noexcept {
    return is_asleep(report) && std::any_of(report.tags.begin(), report.tags.end(),
                                            [](const auto& tag) { return tag.kept > tag.in_files; });
}

Depth depth_of(const model::Report& report) noexcept {
    if (!is_asleep(report)) return Depth::awake;
    if (report.deep) return Depth::deep;
    // Of what keeps nothing, nothing is in anybody's way.
    return sleeps_in_host_memory(report) ? Depth::host : Depth::file;
}

std::optional<double> unused_seconds(const model::Report& report) noexcept {
    if (!is_asleep(report)) return report.idle_seconds;
    if (report.waiting > 0) return 0;
    return std::max(report.idle_seconds.value_or(0), report.state_seconds);
}

Result<Decision> decide(const Policy& policy, const model::Report& report) {
    if (policy.ladder.empty())
        return Decision{{},
                        policy.exempt_by.empty() ? "no policy puts it to sleep"
                                                 : "it is exempt by " + policy.exempt_by};
    if (policy.directory.empty() && leads_to_files(policy.ladder))
        return make_error(ErrorCode::invalid_argument, "{}", k_directory_missing);
    const auto idle = unused_seconds(report);
    if (!idle) return Decision{{}, "it is not known whether it is idle"};
    const auto depth = depth_of(report);
    const auto rung = rung_at(policy.ladder, *idle);
    if (rung ? rung->depth <= depth : depth != Depth::awake) return Decision{{}, "it is already asleep"};
    if (!rung)
        return Decision{{},
                        *idle == 0 ? "it is not idle"
                                   : model::not_yet("idle", *idle, seconds_of(policy.ladder.front().idle))};
    const auto min_awake = seconds_of(policy.min_awake.value_or(Milliseconds(0)));
    const auto awake = report.state == model::State::paused // which is no wake
                           ? report.seconds_since_wake.value_or(std::numeric_limits<double>::infinity())
                           : report.state_seconds;
    if (depth == Depth::awake && awake < min_awake)
        return Decision{{}, model::not_yet("awake", awake, min_awake)};
    auto idle_request = request_for(*rung, policy.directory);
    auto& request = idle_request.sleep;
    if (!heed_tags(policy, tags_of(report), request)) return Decision{{}, "all of its tags are exempt"};
    const bool has_exempt = !request.tags.empty(); // only all of a process sleeps deeply
    if (request.deep && (has_exempt || !report.deep_refusal.empty())) {
        request.deep = false;
        if (depth >= (request.store == model::Store::file ? Depth::file : Depth::host))
            return Decision{{},
                            has_exempt
                                ? "it is already asleep, except for exempt tags"
                                : "it is already asleep, and cannot sleep deeply: " + report.deep_refusal};
    }
    if (depth == Depth::awake) request.on_touch = model::OnTouch::wake;
    request.spill = policy.spill && request.store == model::Store::host && !policy.directory.empty();
    const bool needs_directory = request.spill || model::uses_files(request);
    if (needs_directory && policy.directory.empty())
        return make_error(ErrorCode::invalid_argument, "no directory is set for contents in files");
    if (needs_directory) request.directory = policy.directory;
    // Also that there is none any more.
    request.host_budget = policy.host_budget.value_or(std::numeric_limits<Bytes>::max());
    return Decision{std::move(idle_request), {}};
}

void heed(const Policy& policy, const model::Report& report, model::SleepRequest& request) {
    if (!request.min_awake) request.min_awake = policy.min_awake;
    if (policy.directory.empty() || model::uses_files(request)) return;
    auto without_exempt = policy; // whose memory is needed all the same
    for (auto& [name, tag] : without_exempt.tags) tag.exempt.reset();
    if (!policy.ladder.empty() && policy.ladder.front().depth >= Depth::file)
        request.store = model::Store::file;
    heed_tags(without_exempt, tags_of(report), request);
    request.spill = policy.spill && request.store == model::Store::host;
    if (request.spill || model::uses_files(request)) request.directory = policy.directory;
}

model::IdleSleepRequest request_to_move(const std::string& directory) {
    model::IdleSleepRequest request; // however short it has slept
    request.sleep.store = model::Store::file;
    request.sleep.store_is_named = true;
    request.sleep.directory = directory;
    return request;
}

} // namespace gpu_sleep::control::policy
