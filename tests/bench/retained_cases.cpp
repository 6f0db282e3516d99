// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What contents that are retained cost a program that is awake: two processes with the same weights, of which
// one retains nothing, are measured in turn, so that what changes on the machine meanwhile changes for both.

#include "bench/sleep_cases.hpp"

#include <algorithm>

namespace gpu_sleep::bench {
namespace {

/// Work while awake, in seconds each.
struct Work {
    std::vector<double> launches;
    std::vector<double> passes;

    [[nodiscard]] Result<void> measure(const Bench& bench, Subject& subject) {
        // The first launches find what has slept meanwhile: caches, and the clocks of both processors.
        if (const auto warm = subject.launch(bench.count(100'000)); !warm) return warm.error();
        const auto launch = subject.launch(bench.count(100'000));
        if (!launch) return launch.error();
        launches.push_back(*launch);
        const auto pass = subject.read(bench.count(50));
        if (!pass) return pass.error();
        passes.push_back(*pass);
        return {};
    }
};

struct Both {
    Subject retaining;
    Subject forgetful;

    [[nodiscard]] static Result<Both> start(const Bench& bench) {
        auto retaining = Subject::start();
        if (!retaining) return std::move(retaining).error();
        auto forgetful = Subject::start({"GPU_SLEEP_RETAIN=0"});
        if (!forgetful) return std::move(forgetful).error();
        Both both{*std::move(retaining), *std::move(forgetful)};
        for (auto* subject : {&both.retaining, &both.forgetful})
            GPU_SLEEP_TRY(subject->hold("weights", k_offload, bench.scaled(large_model())));
        return both;
    }
};

Result<void> measure_wakes(Bench& bench, Both& both) {
    std::vector<Timed> slept;
    std::vector<Timed> with;
    std::vector<Timed> without;
    for (unsigned i = 0; i < 1 + std::min(3U, bench.settings().repeats); ++i) {
        GPU_SLEEP_TRY(bench.sleep(both.retaining, slept));
        GPU_SLEEP_TRY(bench.wake(both.retaining, with));
        GPU_SLEEP_TRY(bench.sleep(both.forgetful, slept));
        GPU_SLEEP_TRY(bench.wake(both.forgetful, without));
    }
    with.erase(with.begin()); // nothing was retained before it
    bench.add_times("8B model: wake, contents retained", with, {}, bench.link().to_device);
    bench.add_times("8B model: wake, nothing retained", without, {}, bench.link().to_device);
    bench.add_ratio("8B model: wake, retained / not", "8B model: wake, contents retained",
                    "8B model: wake, nothing retained", bench.target(1.02));
    return {};
}

/// Gives back what is retained, and waits until it is gone; the program works meanwhile.
Result<void> give_back(const Bench& bench, Subject& subject, Work& meanwhile) {
    std::vector<Timed> asked;
    GPU_SLEEP_TRY(bench.sleep(subject, asked, {"--release-retained"}));
    GPU_SLEEP_TRY(meanwhile.measure(bench, subject));
    Result<Bytes> held = 0;
    const bool is_gone = test::becomes_true([&] {
        held = subject.host_bytes();
        return !held || *held == 0;
    });
    if (!held) return held.error();
    if (!is_gone) return make_error(ErrorCode::internal, "host memory is not given back: {} are held", *held);
    return {};
}

/// How much slower one is than the other, pair by pair.
std::vector<double> ratios(const std::vector<double>& of, const std::vector<double>& to) {
    std::vector<double> found;
    for (std::size_t i = 0; i < std::min(of.size(), to.size()); ++i) found.push_back(of[i] / to[i]);
    return found;
}

Result<void> measure_work(Bench& bench, Both& both) {
    constexpr unsigned k_pairs = 9;
    Work retained;
    Work without;
    Work meanwhile;
    for (unsigned i = 0; i < bench.count(k_pairs); ++i) {
        const bool is_first = i % 2 == 0; // who comes second finds a warmer machine
        if (is_first) GPU_SLEEP_TRY(retained.measure(bench, both.retaining));
        GPU_SLEEP_TRY(without.measure(bench, both.forgetful));
        if (!is_first) GPU_SLEEP_TRY(retained.measure(bench, both.retaining));
    }
    GPU_SLEEP_TRY(give_back(bench, both.retaining, meanwhile));
    const auto add = [&](const std::string& name, const char* unit, double scale,
                         std::vector<double> Work::*part) {
        const auto add_one = [&](const char* what, std::vector<double> samples) {
            for (auto& sample : samples) sample *= scale;
            bench.figures().add({name + what, unit, std::move(samples), {}, {}});
        };
        add_one(": nothing retained", without.*part);
        add_one(": contents retained", retained.*part);
        add_one(": while they are given back", meanwhile.*part);
        bench.figures().add(
            {name + ": retained / not", "x", ratios(retained.*part, without.*part), bench.target(1.01), {}});
        bench.add_ratio(name + ": while given back / not", name + ": while they are given back",
                        name + ": nothing retained", {});
    };
    constexpr double k_us = 1e6;
    constexpr double k_ms = 1e3;
    add("awake, a launch", "us", k_us, &Work::launches);
    add("awake, a pass over 16 GB", "ms", k_ms, &Work::passes);
    return {};
}

} // namespace

Result<void> measure_retained(Bench& bench) {
    auto both = Both::start(bench);
    if (!both) return std::move(both).error();
    GPU_SLEEP_TRY(measure_wakes(bench, *both));
    return measure_work(bench, *both);
}

} // namespace gpu_sleep::bench
