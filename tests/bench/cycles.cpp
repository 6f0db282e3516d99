// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Cycles, and their figures.

#include "bench/cycles.hpp"

namespace gpu_sleep::bench {

Result<Cycles> Cycles::of(const Bench& bench, Subject& subject, const How& how) {
    Cycles cycles;
    for (unsigned i = 0; i <= how.repeats; ++i) {
        const bool is_first = i == 0;
        if (!is_first && how.before_later) GPU_SLEEP_TRY(how.before_later(subject));
        bench.pause(how.pauses - 1);
        GPU_SLEEP_TRY(bench.sleep(subject, is_first ? cycles.first : cycles.later,
                                  is_first ? std::vector<std::string>() : how.arguments));
        bench.pause(how.pauses - 1);
        GPU_SLEEP_TRY(bench.wake(subject, cycles.woken));
    }
    return cycles;
}

void Cycles::add_to(Bench& bench, const Telling& telling) const {
    const auto& aims = telling.aims;
    const auto& link = bench.link();
    const auto add = [&](const std::string& what, const std::vector<Timed>& done,
                         std::optional<double> at_most, double rate) {
        std::optional<Point> point;
        if (!telling.along.axis.empty()) point = Point{what, telling.along.axis, telling.along.at};
        const auto name = telling.name + ": " + what;
        bench.add_times(name, done, at_most, telling.is_beside_link ? rate : 0, std::move(point));
        if (telling.has_breakdown) bench.add_breakdown(name, done);
    };
    add("first sleep", first, aims.first, link.to_host);
    add(telling.later, later, aims.later, link.to_host);
    add("wake", woken, aims.wake, link.to_device);
}

} // namespace gpu_sleep::bench
