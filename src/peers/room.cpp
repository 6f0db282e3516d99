// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Plan, ask, look, and once more if that was not enough.

#include "peers/room.hpp"

#include <utility>
#include <variant>

namespace gpu_sleep::peers {
namespace {

/// Asks all of `chosen` at once to sleep.
std::vector<Slept> ask(const std::vector<Holder>& holders, const std::vector<std::size_t>& chosen,
                       const model::SleepRequest& request) {
    constexpr Milliseconds k_grace{2'000};
    std::vector<Slept> all;
    std::vector<Question> questions;
    std::vector<std::size_t> asked;
    for (const auto index : chosen) {
        auto socket = holders[index].connect();
        all.push_back({index, model::Report{}});
        if (!socket) {
            all.back().answer = std::move(socket).error();
            continue;
        }
        asked.push_back(all.size() - 1);
        questions.push_back(
            {*std::move(socket), request, {request.timeout, k_grace, !request.bounds_all, {}, 1}});
    }
    auto answers = ask_all(std::move(questions));
    for (std::size_t i = 0; i < asked.size(); ++i) all[asked[i]].answer = std::move(answers[i]);
    return all;
}

/// Why it still does not sleep; empty: it does, or would.
std::string refusal(const Answer& answer, bool is_dry_run) {
    if (const auto* const error = error_of(answer)) return error->message;
    const auto& report = std::get<model::Report>(answer);
    if (report.changed || is_dry_run) return {};
    return report.notes.empty() ? "it sleeps already" : report.notes.front();
}

} // namespace

model::SleepRequest room_request(Milliseconds min_awake) {
    model::SleepRequest request;
    request.on_touch = model::OnTouch::wake;
    request.min_awake = min_awake;
    return request;
}

std::vector<std::string> describe(const std::vector<Holder>& holders,
                                  const std::vector<Candidate>& candidates, const BytesByGpu& gpus) {
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < holders.size(); ++i) {
        Bytes bytes = 0;
        for (const auto& [gpu, missing] : gpus)
            if (const auto its = candidates[i].frees.find(gpu); its != candidates[i].frees.end())
                bytes += its->second;
        if (bytes == 0) continue;
        const auto why = against(candidates[i]);
        lines.push_back(fmt::format("{} has {}{}", holders[i].title, format_bytes(bytes),
                                    why.empty() ? std::string(" and could sleep") : ": " + why));
    }
    return lines;
}

Result<RoomMade> make_room(const std::vector<Holder>& holders,
                           const std::function<Result<BytesByGpu>()>& look,
                           const model::SleepRequest& request) {
    std::vector<Candidate> candidates;
    candidates.reserve(holders.size());
    for (const auto& holder : holders)
        candidates.push_back(candidate_of(holder.status, request.min_awake.value_or(Milliseconds(0))));
    RoomMade made;
    for (;;) {
        auto missing = look();
        if (!missing) return std::move(missing).error();
        std::erase_if(*missing, [](const auto& each) { return each.second == 0; });
        made.missing = *std::move(missing);
        const auto chosen = plan_room(candidates, made.missing);
        if (made.missing.empty() || chosen.empty()) break;
        for (auto& slept : ask(holders, chosen, request)) {
            auto& candidate = candidates[slept.holder];
            candidate.against = refusal(slept.answer, request.dry_run);
            if (candidate.against.empty()) {
                candidate = {};
                candidate.against = "it sleeps";
            }
            made.slept.push_back(std::move(slept));
        }
        if (request.dry_run) break;
    }
    if (made.missing.empty()) return made;
    made.wait = seconds_until_room(candidates, made.missing);
    made.against = describe(holders, candidates, made.missing);
    return made;
}

} // namespace gpu_sleep::peers
