// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What contents that are retained cost a program that is awake: two processes with the same weights, of which
// one retains nothing, are measured in turn, so that what changes on the machine meanwhile changes for both.

#include "bench/sleep_cases.hpp"

#include <vector>

namespace gpu_sleep::bench {
namespace {

/// Microseconds of a launch.
double launch(const Bench& bench, Subject& subject) {
    // The first launches find what has slept meanwhile: caches, and the clocks of both processors.
    subject.launch(bench.count(100'000));
    return 1e6 * subject.launch(bench.count(100'000));
}

void measure_wakes(Bench& bench, const Subject& retaining, const Subject& forgetful) {
    const auto cycle = [&](const Subject& subject) {
        bench.pause();
        subject.sleep();
        bench.pause();
        return subject.wake();
    };
    cycle(retaining); // nothing was retained before it
    std::vector<Timed> with, without;
    for (unsigned i = 0; i < bench.settings().repeats; ++i) {
        without.push_back(cycle(forgetful));
        with.push_back(cycle(retaining));
    }
    bench.add_times("8B model: wake, contents retained", with, {}, bench.link().to_device);
    bench.add_times("8B model: wake, nothing retained", without, {}, bench.link().to_device);
    bench.add_ratio("8B model: wake, retained / not", "8B model: wake, contents retained",
                    "8B model: wake, nothing retained", 1.02);
}

} // namespace

void measure_retained(Bench& bench) {
    const std::vector<Memory> weights{{"kept", large_model()}};
    auto retaining = bench.start(weights);
    auto forgetful = bench.start(weights, {"GPU_SLEEP_RETAIN=0"});
    measure_wakes(bench, retaining, forgetful);
    constexpr unsigned k_pairs = 9;
    std::vector<double> retained, without;
    std::vector<double> ratios; // pair by pair
    for (unsigned i = 0; i < bench.count(k_pairs); ++i) {
        const bool is_first = i % 2 == 0; // who comes second finds a warmer machine
        if (is_first) retained.push_back(launch(bench, retaining));
        without.push_back(launch(bench, forgetful));
        if (!is_first) retained.push_back(launch(bench, retaining));
        ratios.push_back(retained.back() / without.back());
    }
    bench.pause();
    retaining.sleep({"--release-retained"});
    const auto meanwhile = launch(bench, retaining);
    if (!test::becomes_true([&] { return retaining.reported("host_bytes") == 0; }))
        throw test::ProcessFailure("host memory is not given back");
    auto& figures = bench.figures();
    figures.add({"awake, a launch: nothing retained", "us", without, {}, {}});
    figures.add({"awake, a launch: contents retained", "us", retained, {}, {}});
    figures.add({"awake, a launch: while they are given back", "us", {meanwhile}, {}, {}});
    figures.add({"awake, a launch: retained / not", "x", ratios, bench.target(1.01), {}});
    bench.add_ratio("awake, a launch: while given back / not", "awake, a launch: while they are given back",
                    "awake, a launch: nothing retained");
}

} // namespace gpu_sleep::bench
