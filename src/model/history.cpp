// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The sum of the history.

#include "model/history.hpp"

#include <map>
#include <tuple>

namespace gpu_sleep::model {

double gib_hours(const std::vector<Event>& events, double since, double until,
                 const std::function<bool(const Event&)>& is_there) {
    constexpr double k_gib_hour = 3'600 * static_cast<double>(k_gib);
    struct Piece {
        Bytes bytes;
        double begin;
        const Event* sleep;
    };
    std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>, std::vector<Piece>> asleep;
    double sum = 0;
    const auto add = [&](Bytes bytes, double begin, double end) {
        sum += static_cast<double>(bytes) * std::max(std::min(end, until) - std::max(begin, since), 0.0);
    };
    for (const auto& event : events) {
        if (event.transition == Transition::move) continue;
        auto& pieces = asleep[{event.uid, event.pid, event.start_time}];
        if (event.transition == Transition::sleep) {
            pieces.push_back({event.bytes, event.time, &event});
            continue;
        }
        if (pieces.empty()) add(event.bytes, event.time - event.asleep_seconds, event.time);
        auto woken = event.bytes; // what has slept longest comes first where not all wakes
        for (auto& piece : pieces) {
            const auto part = event.state == State::awake ? piece.bytes : std::min(piece.bytes, woken);
            add(part, piece.begin, event.time);
            piece.bytes -= part;
            woken -= std::min(part, woken);
        }
        if (event.state == State::awake) pieces.clear();
    }
    for (const auto& [process, pieces] : asleep)
        for (const auto& piece : pieces)
            if (is_there(*piece.sleep)) add(piece.bytes, piece.begin, until);
    return sum / k_gib_hour;
}

} // namespace gpu_sleep::model
