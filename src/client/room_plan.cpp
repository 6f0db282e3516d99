// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Choosing.

#include "client/room_plan.hpp"

#include <fmt/format.h>

namespace gpu_sleep::client {
namespace {

/// How much is still missing once one more process sleeps.
BytesByGpu less(BytesByGpu missing, const Candidate& candidate) {
    for (const auto& [gpu, bytes] : candidate.frees)
        if (const auto of_gpu = missing.find(gpu); of_gpu != missing.end())
            of_gpu->second -= std::min(of_gpu->second, bytes);
    return missing;
}

bool is_nothing(const BytesByGpu& missing) {
    return std::ranges::all_of(missing, [](const auto& each) { return each.second == 0; });
}

/// plan_room(), `later` seconds from now.
std::vector<std::size_t> plan(std::span<const Candidate> candidates, const BytesByGpu& missing,
                              double later) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < candidates.size(); ++i)
        if (candidates[i].against.empty() && candidates[i].protected_for <= later) order.push_back(i);
    std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) {
        return std::pair(candidates[i].idle, candidates[i].awake);
    });
    std::vector<std::size_t> chosen;
    auto rest = missing;
    for (const auto index : order) {
        if (is_nothing(rest)) break;
        auto after = less(rest, candidates[index]);
        if (after == rest) continue;
        rest = std::move(after);
        chosen.push_back(index);
    }
    if (!is_nothing(rest)) return {};
    for (auto last = chosen.size(); last-- > 0;) { // one that was taken early may not be needed any more
        auto fewer = chosen;
        fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(last));
        auto left = missing;
        for (const auto index : fewer) left = less(std::move(left), candidates[index]);
        if (is_nothing(left)) chosen = std::move(fewer);
    }
    return chosen;
}

} // namespace

Candidate candidate_of(const model::Report& report, Milliseconds min_awake) {
    Candidate candidate;
    for (const auto& tag : report.tags) {
        const auto device = std::ranges::find(report.devices, tag.device, &model::DeviceReport::device);
        if (device != report.devices.end() && tag.resident > 0) candidate.frees[device->uuid] += tag.resident;
    }
    candidate.idle = report.idle_seconds.value_or(0);
    candidate.awake = report.seconds_since_wake.value_or(std::numeric_limits<double>::infinity());
    candidate.protected_for =
        std::max(0., std::chrono::duration<double>(min_awake).count() - candidate.awake);
    if (candidate.frees.empty())
        candidate.against = "it has no awake memory";
    else if (report.inhibited)
        candidate.against = "sleeps are inhibited";
    else if (!report.intercepts || !report.idle_seconds)
        candidate.against = "it is not known when it was last used";
    return candidate;
}

std::string woken_too_recently(double seconds, double rest) {
    return fmt::format("it was woken {} ago, and may sleep in {}", format_seconds(seconds),
                       format_seconds(rest));
}

std::string against(const Candidate& candidate) {
    if (!candidate.against.empty() || candidate.protected_for == 0) return candidate.against;
    return woken_too_recently(candidate.awake, candidate.protected_for);
}

std::vector<std::size_t> plan_room(std::span<const Candidate> candidates, const BytesByGpu& missing) {
    return plan(candidates, missing, 0);
}

std::optional<double> seconds_until_room(std::span<const Candidate> candidates, const BytesByGpu& missing) {
    std::vector<double> times;
    for (const auto& each : candidates) times.push_back(each.protected_for);
    std::ranges::sort(times);
    for (const auto time : times)
        if (!plan(candidates, missing, time).empty()) return time;
    return std::nullopt;
}

} // namespace gpu_sleep::client
