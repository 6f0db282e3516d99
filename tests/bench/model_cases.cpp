// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Programs as they are: a model server, the same by a plain algorithm, a trainer, a small model, and what the
// agent itself takes.

#include "bench/cycles.hpp"
#include "bench/sleep_cases.hpp"

#include <algorithm>

namespace gpu_sleep::bench {
namespace {

/// What a process takes while it sleeps.
struct Footprint {
    std::vector<double> host_growth; ///< of the process, over what is stored
    std::vector<double> host_held;   ///< by the agent as it says, over the same
    std::vector<double> gpu_left;    ///< GPU memory in use, in MiB
};

/// Sleeps for the first time in a process, and what that takes of the host. Leaves it asleep.
Result<void> sleep_first(const Bench& bench, Subject& subject, std::vector<Timed>& slept,
                         Footprint& footprint) {
    const auto awake = subject.resident_bytes();
    if (!awake) return awake.error();
    GPU_SLEEP_TRY(bench.sleep(subject, slept));
    const auto asleep = subject.resident_bytes();
    if (!asleep) return asleep.error();
    const auto gpu = subject.gpu_memory();
    if (!gpu) return gpu.error();
    const auto stored = static_cast<double>(slept.back().stored);
    footprint.host_growth.push_back((static_cast<double>(*asleep) - static_cast<double>(*awake)) / stored);
    footprint.host_held.push_back(static_cast<double>(slept.back().host_bytes) / stored);
    footprint.gpu_left.push_back(static_cast<double>(gpu->total - gpu->free) / k_mib);
    return {};
}

Result<void> measure_changes(Bench& bench, Subject& subject) {
    struct Change {
        const char* name;
        Bytes nth; ///< block that changes
        double at_most;
        std::vector<std::string> arguments;
    };
    const std::vector<Change> changes{{"8B model: later sleep, 1 % of blocks changed", 100, 0.06, {}},
                                      {"8B model: later sleep, all changed", 1, 0.33, {}},
                                      {"8B model: later sleep, --copy-all", 0, 0.33, {"--copy-all"}}};
    for (const auto& each : changes) {
        std::vector<Timed> slept;
        std::vector<Timed> woken;
        for (unsigned i = 0; i < std::min(3U, bench.settings().repeats); ++i) {
            if (each.nth != 0) GPU_SLEEP_TRY(subject.change(each.nth));
            GPU_SLEEP_TRY(bench.sleep(subject, slept, each.arguments));
            GPU_SLEEP_TRY(bench.wake(subject, woken));
        }
        bench.add_times(each.name, slept, bench.target(each.at_most), bench.link().to_host);
        if (each.nth != 0) bench.add_breakdown(each.name, slept);
    }
    constexpr double k_no_slower = 1.0;
    bench.add_ratio("8B model: all changed / first sleep", "8B model: later sleep, all changed",
                    "8B model: first sleep", bench.target(k_no_slower));
    return {};
}

Result<void> measure_tags(Bench& bench, Subject& subject) {
    std::vector<Timed> slept;
    std::vector<Timed> weights;
    std::vector<Timed> cache_alone;
    for (unsigned i = 0; i < std::min(2U, bench.settings().repeats); ++i) {
        GPU_SLEEP_TRY(bench.sleep(subject, slept));
        GPU_SLEEP_TRY(bench.wake(subject, weights, {"--tags", "weights"}));
        GPU_SLEEP_TRY(bench.wake(subject, cache_alone, {"--tags", "kv_cache"}));
    }
    bench.add_times("8B model: wake of its weights", weights, {}, bench.link().to_device);
    bench.add_times("8B model: wake of its cache", cache_alone, {});
    return {};
}

/// The plain algorithm on the same tensors. `name` begins its figures.
Result<void> measure_algorithm(Bench& bench, const std::string& name, bool retains_host_memory) {
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    GPU_SLEEP_TRY(subject->begin_tensors(retains_host_memory));
    GPU_SLEEP_TRY(subject->hold_tensors(true, bench.scaled(large_model())));
    GPU_SLEEP_TRY(subject->hold_tensors(false, bench.scaled(cache())));
    std::vector<double> slept;
    std::vector<double> woken;
    // Without its host memory each sleep is like the first, which takes seconds.
    const auto cycles = retains_host_memory ? 1 + std::min(3U, bench.settings().repeats) : 1;
    for (unsigned i = 0; i < cycles; ++i) {
        bench.pause();
        const auto asleep = subject->sleep_tensors();
        if (!asleep) return asleep.error();
        slept.push_back(*asleep);
        bench.pause();
        const auto awake = subject->wake_tensors();
        if (!awake) return awake.error();
        woken.push_back(*awake);
    }
    GPU_SLEEP_TRY(subject->check_tensors());
    auto& figures = bench.figures();
    const auto bytes = static_cast<double>(bench.total(large_model()));
    const auto first = name + (retains_host_memory ? ": first sleep" : ": each sleep");
    const auto later = retains_host_memory ? name + ": later sleep" : first;
    figures.add({first, "s", {slept.front()}, {}, bytes / bench.link().to_host});
    slept.erase(slept.begin());
    if (!slept.empty()) figures.add({later, "s", slept, {}, bytes / bench.link().to_host});
    figures.add({name + ": wake", "s", woken, {}, bytes / bench.link().to_device});
    bench.add_ratio(name + " / ours: first sleep", first, "8B model: first sleep", {});
    bench.add_ratio(name + " / ours: later sleep, all changed", later, "8B model: later sleep, all changed",
                    {});
    bench.add_ratio(name + " / ours: later sleep, unchanged", later, "8B model: later sleep, unchanged", {});
    bench.add_ratio(name + " / ours: wake", name + ": wake", "8B model: wake", {});
    return {};
}

/// How much a process grows by holding ranges, and by sleeping once if the agent holds them.
Result<double> growth(const Bench& bench, bool with_agent) {
    const Sizes many_ranges(300, 4 * k_mib);
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    if (const auto ready = subject->devices(); !ready) return ready.error();
    const auto before = subject->resident_bytes();
    if (!before) return before.error();
    if (with_agent) {
        std::vector<Timed> done;
        GPU_SLEEP_TRY(subject->hold("weights", k_offload, bench.scaled(many_ranges)));
        GPU_SLEEP_TRY(bench.sleep(*subject, done));
        GPU_SLEEP_TRY(bench.wake(*subject, done));
        GPU_SLEEP_TRY(bench.sleep(*subject, done, {"--release-retained"}));
        bench.pause(); // contents are given back after the answer
    } else {
        GPU_SLEEP_TRY(subject->hold_plainly(bench.scaled(many_ranges)));
    }
    const auto after = subject->resident_bytes();
    if (!after) return after.error();
    return static_cast<double>(*after) - static_cast<double>(*before);
}

} // namespace

Result<void> measure_model(Bench& bench) {
    std::vector<Timed> first;
    std::vector<Timed> later;
    std::vector<Timed> woken;
    Footprint footprint;
    const auto& settings = bench.settings();
    for (unsigned i = 0; i < settings.first_sleeps; ++i) {
        auto subject = Subject::start();
        if (!subject) return std::move(subject).error();
        GPU_SLEEP_TRY(subject->hold("weights", k_offload, bench.scaled(large_model())));
        GPU_SLEEP_TRY(subject->hold("kv_cache", k_discard, bench.scaled(cache())));
        GPU_SLEEP_TRY(sleep_first(bench, *subject, first, footprint));
        GPU_SLEEP_TRY(bench.wake(*subject, woken));
        if (i + 1 < settings.first_sleeps) continue;
        for (unsigned j = 0; j < settings.repeats; ++j) {
            GPU_SLEEP_TRY(bench.sleep(*subject, later));
            GPU_SLEEP_TRY(bench.wake(*subject, woken));
        }
        bench.add_times("8B model: first sleep", first, bench.target(0.55), bench.link().to_host);
        bench.add_times("8B model: later sleep, unchanged", later, bench.target(0.04), bench.link().to_host);
        bench.add_times("8B model: wake", woken, bench.wake_target(woken), bench.link().to_device);
        bench.add_breakdown("8B model: first sleep", first);
        bench.add_breakdown("8B model: later sleep, unchanged", later);
        bench.add_breakdown("8B model: wake", woken);
        GPU_SLEEP_TRY(measure_changes(bench, *subject));
        GPU_SLEEP_TRY(measure_tags(bench, *subject));
    }
    bench.figures().add({"8B model: host memory asleep, of blocks not all zero",
                         "x",
                         footprint.host_growth,
                         bench.target(1.02),
                         {}});
    bench.figures().add(
        {"8B model: held by the agent, of the same", "x", footprint.host_held, bench.target(1.02), {}});
    bench.figures().add({"8B model: GPU memory in use asleep", "MiB", footprint.gpu_left, {}, {}});
    return {};
}

Result<void> measure_tensors(Bench& bench) {
    GPU_SLEEP_TRY(measure_algorithm(bench, "per tensor", false));
    return measure_algorithm(bench, "per tensor, retained", true);
}

Result<void> measure_training(Bench& bench) {
    // As PyTorch has it under AdamW: parameters, gradients and two moments, each a range.
    const Sizes tensors(1600, 26 * k_gib / 1600 / k_kib * k_kib);
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    const auto bytes = bench.total(tensors);
    const auto has_room = bench.has_room(*subject, "training", bytes, bytes);
    if (!has_room) return has_room.error();
    if (!*has_room) return {};
    GPU_SLEEP_TRY(subject->hold("default", k_offload, bench.scaled(tensors)));
    const auto change = [](Subject& changed) { return changed.change(1); };
    const auto cycles = Cycles::of(
        bench, *subject, {.repeats = std::min(3U, bench.settings().repeats), .before_later = change});
    if (!cycles) return cycles.error();
    cycles->add_to(bench, {.name = "AdamW, 26 GiB in 1600 ranges",
                           .later = "sleep, all changed",
                           .aims = {{}, bench.target(0.75), bench.target(0.55)}});
    return {};
}

Result<void> measure_small_model(Bench& bench) {
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    GPU_SLEEP_TRY(subject->hold("weights", k_offload, bench.scaled(Sizes(100, 12'000'000))));
    const auto cycles = Cycles::of(bench, *subject, {.repeats = bench.settings().repeats});
    if (!cycles) return cycles.error();
    cycles->add_to(bench, {.name = "1.2 GB model",
                           .aims = {bench.target(0.10), bench.target(0.02), bench.target(0.03)}});
    return {};
}

Result<void> measure_footprint(Bench& bench) {
    std::vector<double> own;
    for (unsigned i = 0; i < std::min(2U, bench.settings().first_sleeps); ++i) {
        const auto with_agent = growth(bench, true);
        if (!with_agent) return with_agent.error();
        const auto without = growth(bench, false);
        if (!without) return without.error();
        own.push_back((*with_agent - *without) / k_mib);
    }
    bench.figures().add({"300 ranges: the agent's own memory awake", "MiB", own, bench.target(20), {}});
    return {};
}

} // namespace gpu_sleep::bench
