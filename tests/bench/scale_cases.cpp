// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How the times grow: with bytes, with ranges, with GPUs; and what hardly costs: zeros, dropping, retaining.

#include "bench/sleep_cases.hpp"

#include <algorithm>
#include <chrono>
#include <string>

namespace gpu_sleep::bench {
namespace {

/// Pauses before an operation on so much that the driver scrubs it for longer than one.
constexpr unsigned k_longer = 3;

/// A first sleep, `repeats` later ones, and their wakes, of what `subject` holds, with so many pauses before
/// each.
struct Cycles {
    std::vector<Timed> first;
    std::vector<Timed> later;
    std::vector<Timed> woken;

    [[nodiscard]] static Result<Cycles> of(const Bench& bench, const Subject& subject, unsigned repeats,
                                           unsigned pauses = 1) {
        Cycles cycles;
        for (unsigned i = 0; i <= repeats; ++i) {
            bench.pause(pauses - 1);
            GPU_SLEEP_TRY(bench.sleep(subject, i == 0 ? cycles.first : cycles.later));
            bench.pause(pauses - 1);
            GPU_SLEEP_TRY(bench.wake(subject, cycles.woken));
        }
        return cycles;
    }
    void add_breakdowns(Bench& bench, const std::string& name) const {
        bench.add_breakdown(name + ": first sleep", first);
        bench.add_breakdown(name + ": later sleep, unchanged", later);
        bench.add_breakdown(name + ": wake", woken);
    }
};

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

Result<void> measure_work(Bench& bench) {
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    GPU_SLEEP_TRY(subject->hold("weights", k_offload, bench.scaled(large_model())));
    Work retained;
    Work without;
    Work meanwhile;
    GPU_SLEEP_TRY(without.measure(bench, *subject)); // also warms up
    without = {};
    for (unsigned i = 0; i < std::min(3U, bench.settings().repeats); ++i) {
        std::vector<Timed> done;
        GPU_SLEEP_TRY(bench.sleep(*subject, done));
        GPU_SLEEP_TRY(bench.wake(*subject, done));
        bench.pause();
        GPU_SLEEP_TRY(retained.measure(bench, *subject));
        GPU_SLEEP_TRY(give_back(bench, *subject, meanwhile));
        GPU_SLEEP_TRY(without.measure(bench, *subject));
    }
    constexpr double k_us = 1e6;
    constexpr double k_ms = 1e3;
    auto& figures = bench.figures();
    const auto add = [&](const std::string& name, const char* unit, double scale, const auto& samples_of) {
        const auto scaled = [&](const Work& work) {
            auto samples = samples_of(work);
            for (auto& sample : samples) sample *= scale;
            return samples;
        };
        figures.add({name + ": nothing retained", unit, scaled(without), {}, {}});
        figures.add({name + ": contents retained", unit, scaled(retained), {}, {}});
        figures.add({name + ": while they are given back", unit, scaled(meanwhile), {}, {}});
        bench.add_ratio(name + ": retained / not", name + ": contents retained", name + ": nothing retained",
                        bench.target(1.01));
        bench.add_ratio(name + ": while given back / not", name + ": while they are given back",
                        name + ": nothing retained", {});
    };
    add("awake, a launch", "us", k_us, [](const Work& work) { return work.launches; });
    add("awake, a pass over 16 GB", "ms", k_ms, [](const Work& work) { return work.passes; });
    return {};
}

/// Waits until the agent has prepared host memory for `bytes`. The program launches meanwhile: the seconds
/// that a launch takes go to `launches`. Returns how long it took.
Result<double> wait_until_prepared(const Bench& bench, Subject& subject, Bytes bytes,
                                   std::vector<double>& launches) {
    constexpr std::chrono::seconds k_patience{180};
    constexpr Bytes k_piece = 32 * k_mib;
    const auto start = Clock::now();
    bytes -= bytes % k_piece;
    Bytes held = 0;
    for (; Clock::now() - start < k_patience; bench.pause()) {
        const auto now = subject.retained_bytes();
        if (!now) return now.error();
        if (*now >= bytes) return std::chrono::duration<double>(Clock::now() - start).count();
        const bool is_preparing = *now > held;
        held = *now;
        const auto launch = subject.launch(bench.count(100'000));
        if (!launch) return launch.error();
        if (is_preparing) launches.push_back(*launch);
    }
    return make_error(ErrorCode::internal, "{} of {} are prepared after three minutes", format_bytes(held),
                      format_bytes(bytes));
}

/// Wakes of two processes in turn, of which one retains nothing.
Result<void> measure_wakes(Bench& bench) {
    auto retaining = Subject::start();
    if (!retaining) return std::move(retaining).error();
    auto forgetful = Subject::start({"GPU_SLEEP_RETAIN=0"});
    if (!forgetful) return std::move(forgetful).error();
    std::vector<Timed> slept;
    std::vector<Timed> with;
    std::vector<Timed> without;
    for (auto* subject : {&*retaining, &*forgetful})
        GPU_SLEEP_TRY(subject->hold("weights", k_offload, bench.scaled(large_model())));
    for (unsigned i = 0; i < 1 + std::min(3U, bench.settings().repeats); ++i) {
        GPU_SLEEP_TRY(bench.sleep(*retaining, slept));
        GPU_SLEEP_TRY(bench.wake(*retaining, with));
        GPU_SLEEP_TRY(bench.sleep(*forgetful, slept));
        GPU_SLEEP_TRY(bench.wake(*forgetful, without));
    }
    with.erase(with.begin()); // nothing was retained before it
    bench.add_times("8B model: wake, contents retained", with, {}, bench.link().to_device);
    bench.add_times("8B model: wake, nothing retained", without, {}, bench.link().to_device);
    bench.add_ratio("8B model: wake, retained / not", "8B model: wake, contents retained",
                    "8B model: wake, nothing retained", bench.target(1.02));
    return {};
}

/// Sleeps that copy everything, and wakes, of as much on each of some devices.
Result<void> measure_side_by_side(Bench& bench, const std::string& name, int devices) {
    const auto sizes = bench.scaled(in_large_ranges(8 * k_gib));
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    for (int device = 0; device < devices; ++device)
        GPU_SLEEP_TRY(subject->hold("weights", k_offload, sizes, device));
    std::vector<Timed> first;
    std::vector<Timed> slept;
    std::vector<Timed> woken;
    GPU_SLEEP_TRY(bench.sleep(*subject, first));
    GPU_SLEEP_TRY(bench.wake(*subject, woken));
    for (unsigned i = 0; i < std::min(3U, bench.settings().repeats); ++i) {
        GPU_SLEEP_TRY(bench.sleep(*subject, slept, {"--copy-all"}));
        GPU_SLEEP_TRY(bench.wake(*subject, woken));
    }
    bench.add_times(name + ": first sleep", first, {});
    bench.add_times(name + ": sleep, all copied", slept, {});
    bench.add_times(name + ": wake", woken, {});
    return {};
}

} // namespace

Result<void> measure_reserved(Bench& bench) {
    // As JAX does by itself: three quarters of the GPU, hardly any of it used.
    const Sizes written(1, k_gib);
    const Sizes reserved(13, 8 * k_gib);
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    const auto has_room = bench.has_room(*subject, "memory that is reserved and hardly used",
                                         bench.total(reserved) + bench.total(written), bench.total(written));
    if (!has_room) return has_room.error();
    if (!*has_room) return {};
    GPU_SLEEP_TRY(subject->hold("default", k_offload, bench.scaled(written)));
    GPU_SLEEP_TRY(subject->hold_zeros("default", bench.scaled(reserved)));
    const auto cycles = Cycles::of(bench, *subject, std::min(3U, bench.settings().repeats), k_longer);
    if (!cycles) return cycles.error();
    const std::string name = "105 GiB, 1 of them written";
    bench.add_times(name + ": first sleep", cycles->first, bench.target(0.20));
    bench.add_times(name + ": later sleep", cycles->later, bench.target(0.08));
    bench.add_times(name + ": wake", cycles->woken, bench.target(0.15));
    cycles->add_breakdowns(bench, name);
    return {};
}

Result<void> measure_level_2(Bench& bench) {
    const auto sizes = in_large_ranges(120 * k_gib);
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    const auto has_room = bench.has_room(*subject, "level 2 of 120 GiB", bench.total(sizes), 0);
    if (!has_room) return has_room.error();
    if (!*has_room) return {};
    GPU_SLEEP_TRY(subject->hold("weights", k_offload, bench.scaled(sizes)));
    std::vector<Timed> slept;
    std::vector<Timed> woken;
    for (unsigned i = 0; i < std::min(4U, bench.settings().repeats); ++i) {
        GPU_SLEEP_TRY(bench.sleep(*subject, slept, {"--level", "2"}));
        GPU_SLEEP_TRY(bench.wake(*subject, woken));
    }
    bench.add_times("120 GiB: sleep at level 2", slept, bench.target(0.08));
    bench.add_times("120 GiB: wake from level 2, zeroed", woken, {});
    bench.add_breakdown("120 GiB: sleep at level 2", slept);
    bench.add_breakdown("120 GiB: wake from level 2, zeroed", woken);
    return {};
}

Result<void> measure_retained(Bench& bench) {
    GPU_SLEEP_TRY(measure_work(bench));
    return measure_wakes(bench);
}

Result<void> measure_prepared(Bench& bench) {
    const auto sizes = bench.scaled(large_model());
    std::vector<Timed> slept[2];
    std::vector<Timed> woken[2];
    std::vector<double> launches[2];
    std::vector<double> preparing;
    for (unsigned i = 0; i < std::min(2U, bench.settings().first_sleeps); ++i)
        for (const bool is_prepared : {false, true}) {
            auto subject = is_prepared ? Subject::start({"GPU_SLEEP_PREPARE=1"}) : Subject::start();
            if (!subject) return std::move(subject).error();
            GPU_SLEEP_TRY(subject->hold("weights", k_offload, sizes));
            if (is_prepared) {
                const auto took =
                    wait_until_prepared(bench, *subject, bench.total(large_model()), launches[1]);
                if (!took) return took.error();
                preparing.push_back(*took);
            }
            for (unsigned round = 0; !is_prepared && round < 5; ++round) {
                const auto launch = subject->launch(bench.count(100'000));
                if (!launch) return launch.error();
                if (round > 0) launches[0].push_back(*launch); // the first ones warm up
            }
            GPU_SLEEP_TRY(bench.sleep(*subject, slept[is_prepared]));
            GPU_SLEEP_TRY(bench.wake(*subject, woken[is_prepared]));
        }
    const std::string names[] = {"8B model, nothing prepared", "8B model, host memory prepared"};
    auto& figures = bench.figures();
    for (const bool is_prepared : {false, true}) {
        const auto& name = names[is_prepared];
        bench.add_times(name + ": first sleep", slept[is_prepared], {}, bench.link().to_host);
        bench.add_times(name + ": wake after it", woken[is_prepared], {}, bench.link().to_device);
        bench.add_breakdown(name + ": first sleep", slept[is_prepared]);
        for (auto& launch : launches[is_prepared]) launch *= 1e6;
    }
    figures.add({names[1] + ": preparing took", "s", preparing, {}, {}});
    bench.add_ratio("8B model: first sleep, prepared / not", names[1] + ": first sleep",
                    names[0] + ": first sleep", {});
    if (launches[1].empty()) {
        figures.note("nothing was launched while host memory was prepared: that took no time");
        return {};
    }
    figures.add({"awake, a launch: nothing prepared", "us", launches[0], {}, {}});
    figures.add({"awake, a launch: while host memory is prepared", "us", launches[1], {}, {}});
    bench.add_ratio("awake, a launch: while prepared / not", "awake, a launch: while host memory is prepared",
                    "awake, a launch: nothing prepared", {});
    return {};
}

Result<void> measure_devices(Bench& bench) {
    constexpr int k_devices = 2;
    if (bench.devices().count < k_devices) {
        bench.figures().note("several GPUs at once were left out: there is one");
        return {};
    }
    constexpr double k_most = 1.1;
    GPU_SLEEP_TRY(measure_side_by_side(bench, "8 GiB on one GPU", 1));
    GPU_SLEEP_TRY(measure_side_by_side(bench, "8 GiB on each of two GPUs", k_devices));
    for (const auto* what : {": first sleep", ": sleep, all copied", ": wake"})
        bench.add_ratio(fmt::format("two GPUs / one{}", what),
                        fmt::format("8 GiB on each of two GPUs{}", what),
                        fmt::format("8 GiB on one GPU{}", what), bench.target(k_most));
    return {};
}

Result<void> measure_size(Bench& bench, Bytes bytes) {
    const auto sizes = in_large_ranges(bytes);
    const auto whole = bench.total(sizes);
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    const auto name = format_bytes(bytes);
    const auto has_room = bench.has_room(*subject, name + " at level 1", whole, whole);
    if (!has_room) return has_room.error();
    if (!*has_room) return {};
    GPU_SLEEP_TRY(subject->hold("weights", k_offload, bench.scaled(sizes)));
    const bool is_large = bytes > 32 * k_gib;
    const auto cycles = Cycles::of(bench, *subject, is_large ? 1 : 2, is_large ? k_longer : 1);
    if (!cycles) return cycles.error();
    const bool is_largest = bytes == 100 * k_gib;
    const auto at = static_cast<double>(whole) / k_gib;
    const auto point = [&](const char* series) { return Point{series, "GiB", at}; };
    bench.add_times(name + ": first sleep", cycles->first, is_largest ? bench.target(3.2) : std::nullopt,
                    bench.link().to_host, point("first sleep"));
    bench.add_times(name + ": later sleep, unchanged", cycles->later,
                    is_largest ? bench.target(0.10) : std::nullopt, bench.link().to_host,
                    point("later sleep, unchanged"));
    bench.add_times(name + ": wake", cycles->woken,
                    is_largest ? bench.wake_target(cycles->woken) : std::nullopt, bench.link().to_device,
                    point("wake"));
    if (is_largest) cycles->add_breakdowns(bench, name);
    return {};
}

Result<void> measure_ranges(Bench& bench, std::size_t nominal) {
    // As small as the driver makes memory. One in sixteen is stored: per range the same at every number.
    constexpr std::size_t k_written = 16;
    const auto count =
        std::max(k_written, static_cast<std::size_t>(static_cast<double>(nominal) * bench.settings().scale));
    const Sizes written(count / k_written, 2 * k_mib);
    const Sizes zeros(count - written.size(), 2 * k_mib);
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    const auto name = fmt::format("{} ranges", nominal);
    const auto has_room = bench.has_room(*subject, name, count * 2 * k_mib, written.size() * 2 * k_mib);
    if (!has_room) return has_room.error();
    if (!*has_room) return {};
    GPU_SLEEP_TRY(subject->hold("default", k_offload, written));
    GPU_SLEEP_TRY(subject->hold_zeros("default", zeros));
    const auto cycles = Cycles::of(bench, *subject, 1);
    if (!cycles) return cycles.error();
    const auto point = [&](const char* series) {
        return Point{series, "thousand ranges", static_cast<double>(count) / 1000};
    };
    bench.add_times(name + ": first sleep", cycles->first, {}, 0, point("first sleep"));
    bench.add_times(name + ": later sleep, unchanged", cycles->later, {}, 0, point("later sleep, unchanged"));
    bench.add_times(name + ": wake", cycles->woken, {}, 0, point("wake"));
    cycles->add_breakdowns(bench, name);
    return {};
}

} // namespace gpu_sleep::bench
