// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Choosing backings, pieces and rounds.

#include "sleep/live_plan.hpp"

namespace gpu_sleep::sleep {
namespace {

/// Leaves out the first of each tag, which the program has in host memory from its start.
void leave_as_started(const ledger::Ledger& ledger, std::vector<LivePart>& parts) {
    std::map<ledger::TagId, Bytes> stays;
    std::vector<LivePart> rest;
    for (const auto& part : parts) {
        const auto tag = ledger.find(part.span.address)->tag;
        auto& sum = stays[tag];
        if (sum < ledger.tag(tag).live_bytes)
            sum += part.span.bytes;
        else
            rest.push_back(part);
    }
    parts = std::move(rest);
}

/// In seconds; for each GiB, what the driver's calls take of a program at rest, at 55 GB/s. Out, most of the
/// time goes into making host memory, and most of a pause into mapping it. In, copying takes most of both.
struct Costs {
    double longest_pause; ///< that a piece may make, as far as its size decides
    double pause_per_gib;
    double time_per_gib;
};
constexpr double k_least_pause = 0.002;

constexpr Costs costs_of(Direction direction) noexcept {
    return direction == Direction::to_host ? Costs{0.014, 0.0115, 0.23} : Costs{0.010, 0.0245, 0.037};
}

constexpr Bytes to_piece(double bytes) noexcept {
    if (!(bytes < static_cast<double>(k_most_piece))) return k_most_piece; // infinite without a pause
    return std::max(k_least_piece, static_cast<Bytes>(bytes));
}

} // namespace

Result<std::vector<LivePart>> plan_live(const ledger::Ledger& ledger, Direction direction,
                                        const std::vector<std::string>& tags, Bytes bytes) {
    if (direction == Direction::to_host)
        for (const auto& name : tags) GPU_SLEEP_TRY(ledger.find_tag(name));
    std::vector<LivePart> parts;
    Bytes moved = 0;
    for (const auto& [address, backing] : ledger.backings()) {
        const bool is_asked_for = model::means_tag(tags, ledger.tag(backing.tag).name);
        if (!is_asked_for || backing.is_asleep() || backing.stay_reason) continue;
        if (backing.host_backed == (direction == Direction::to_device))
            parts.push_back({backing.number, {address, backing.bytes}, backing.device});
        else if (direction == Direction::to_host)
            moved += backing.bytes;
    }
    const auto place = [&](const LivePart& part) {
        const auto& name = ledger.tag(ledger.find(part.span.address)->tag).name;
        return std::pair(std::ranges::find(tags, name), part.number);
    };
    std::ranges::sort(parts, {}, place);
    if (direction == Direction::to_device && bytes == model::k_all_bytes) leave_as_started(ledger, parts);
    const auto end = std::ranges::find_if(parts, [&](const LivePart& part) {
        if (moved >= bytes) return true;
        moved += part.span.bytes;
        return false;
    });
    parts.erase(end, parts.end());
    return parts;
}

std::span<const LivePart> first_piece(std::span<const LivePart> parts, Bytes limit) noexcept {
    Bytes sum = 0;
    const auto end = std::ranges::find_if(parts, [&](const LivePart& part) {
        sum += part.span.bytes;
        return part.device != parts.front().device || (sum > limit && &part != &parts.front());
    });
    return parts.first(static_cast<std::size_t>(end - parts.begin()));
}

Bytes bytes_of(std::span<const LivePart> parts) noexcept {
    return sum_of(parts, [](const LivePart& part) { return part.span.bytes; });
}

Bytes first_piece_limit(Direction direction) noexcept {
    const auto costs = costs_of(direction);
    const auto gib = (costs.longest_pause - k_least_pause) / costs.pause_per_gib;
    return to_piece(gib * static_cast<double>(k_gib) / 2); // half of it: links and drivers differ
}

Bytes next_piece_limit(Direction direction, Bytes bytes, std::chrono::duration<double> pause) noexcept {
    return to_piece(static_cast<double>(bytes) * costs_of(direction).longest_pause /
                    std::max(pause.count(), 0.0));
}

Verdict judge_round(Bytes changed, Bytes bytes, int round) noexcept {
    constexpr Bytes k_part = 10; // a tenth
    if (changed <= bytes / k_part) return Verdict::move;
    return round < k_most_rounds ? Verdict::again : Verdict::stay;
}

LiveEstimate estimate_move(Direction direction, std::span<const LivePart> parts) noexcept {
    const auto costs = costs_of(direction);
    constexpr auto k_gib_bytes = static_cast<double>(k_gib);
    Bytes largest = 0;
    for (auto rest = parts; !rest.empty();) {
        const auto piece = first_piece(rest, 2 * first_piece_limit(direction));
        largest = std::max(largest, bytes_of(piece));
        rest = rest.subspan(piece.size());
    }
    const auto gib = [](Bytes bytes) { return static_cast<double>(bytes) / k_gib_bytes; };
    return {std::chrono::duration<double>(gib(bytes_of(parts)) * costs.time_per_gib),
            std::chrono::duration<double>(
                parts.empty() ? 0 : k_least_pause + gib(largest) * costs.pause_per_gib)};
}

} // namespace gpu_sleep::sleep
