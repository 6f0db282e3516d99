// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The sum of the history.

#include "model/history.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace gpu_sleep::model {

double gib_hours(const std::vector<Event>& events, double since, double until,
                 const std::function<bool(const Event&)>& is_there) {
    constexpr double k_gib_hour = 3'600 * static_cast<double>(k_gib);
    std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>, std::vector<const Event*>> asleep;
    double sum = 0;
    const auto add = [&](Bytes bytes, double begin, double end) {
        sum += static_cast<double>(bytes) * std::max(std::min(end, until) - std::max(begin, since), 0.0);
    };
    for (const auto& event : events) {
        auto& sleeps = asleep[{event.uid, event.pid, event.start_time}];
        if (event.operation == Operation::sleep) {
            sleeps.push_back(&event);
        } else {
            add(event.bytes, event.time - event.asleep_seconds, event.time);
            sleeps.clear();
        }
    }
    for (const auto& [process, sleeps] : asleep)
        for (const auto* const sleep : sleeps)
            if (is_there(*sleep)) add(sleep->bytes, sleep->time, until);
    return sum / k_gib_hour;
}

} // namespace gpu_sleep::model
