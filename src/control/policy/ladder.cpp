// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading rungs, and putting them in order.

#include "control/policy/ladder.hpp"

#include <algorithm>
#include <array>

namespace gpu_sleep::control::policy {
namespace {

constexpr std::array k_depths{Depth::host, Depth::file, Depth::deep}; // that a rung may have

bool is_earlier(const Rung& one, const Rung& other) noexcept {
    return one.idle < other.idle;
}

} // namespace

std::string_view to_string(Depth depth) noexcept {
    switch (depth) {
    case Depth::awake: return "awake";
    case Depth::host: return "host";
    case Depth::file: return "file";
    case Depth::deep: return "deep";
    }
    return "awake";
}

Result<Rung> parse_rung(std::string_view text) {
    const auto colon = text.find(':');
    const auto time = parse_duration(text.substr(0, colon));
    if (!time) return time.error();
    if (colon == std::string_view::npos) return Rung{*time, Depth::host};
    const auto word = text.substr(colon + 1);
    const auto* const depth =
        std::find_if(k_depths.begin(), k_depths.end(), [=](Depth each) { return to_string(each) == word; });
    if (depth == k_depths.end())
        return make_error(ErrorCode::invalid_argument,
                          "'{}' is not a place: the places are host, file and deep", word);
    return Rung{*time, *depth};
}

Result<Ladder> make_ladder(std::vector<Rung> rungs) {
    std::sort(rungs.begin(), rungs.end(), is_earlier);
    for (std::size_t i = 1; i < rungs.size(); ++i) {
        const auto& [idle, depth] = rungs[i];
        if (idle == rungs[i - 1].idle)
            return make_error(ErrorCode::invalid_argument, "two steps have the same time, {}", to_text(idle));
        if (depth <= rungs[i - 1].depth)
            return make_error(ErrorCode::invalid_argument, "'{}' after {} is no deeper than '{}'",
                              to_string(depth), to_text(idle), to_string(rungs[i - 1].depth));
    }
    return rungs;
}

std::optional<Rung> rung_at(const Ladder& ladder, double idle_seconds) noexcept {
    std::optional<Rung> reached;
    for (const auto& rung : ladder)
        if (idle_seconds >= seconds_of(rung.idle)) reached = rung;
    return reached;
}

Ladder deeper_of(const Ladder& one, const Ladder& other) {
    std::vector<Rung> all = one;
    all.insert(all.end(), other.begin(), other.end());
    std::stable_sort(all.begin(), all.end(), is_earlier);
    Ladder ladder;
    for (const auto& rung : all) {
        if (!ladder.empty() && rung.depth <= ladder.back().depth) continue;
        if (!ladder.empty() && ladder.back().idle == rung.idle) ladder.pop_back();
        ladder.push_back(rung);
    }
    return ladder;
}

bool leads_to_files(const Ladder& ladder) noexcept {
    return std::any_of(ladder.begin(), ladder.end(),
                       [](const Rung& rung) { return rung.depth == Depth::file; });
}

std::string to_text(Milliseconds time) {
    struct Unit {
        std::int64_t milliseconds;
        const char* name;
    };
    if (time.count() == 0) return "0s";
    for (const auto& [milliseconds, name] :
         {Unit{86'400'000, "d"}, Unit{3'600'000, "h"}, Unit{60'000, "m"}, Unit{1'000, "s"}})
        if (time.count() % milliseconds == 0) return fmt::format("{}{}", time.count() / milliseconds, name);
    return fmt::format("{}ms", time.count());
}

std::string to_text(const Ladder& ladder) {
    std::string text;
    for (const auto& rung : ladder)
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", to_text(rung.idle), to_string(rung.depth));
    return text.empty() ? "never" : text;
}

} // namespace gpu_sleep::control::policy
