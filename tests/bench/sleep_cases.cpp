// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How a program is measured, and the list of cases with those that need no more than that.

#include "bench/sleep_cases.hpp"

#include "model/model.hpp"
#include "store/host_memory.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <thread>

namespace gpu_sleep::bench {
namespace {

std::vector<double> seconds_of(const std::vector<Timed>& operations) {
    std::vector<double> seconds;
    for (const auto& operation : operations) seconds.push_back(operation.seconds);
    return seconds;
}

/// Where the time went in the operation that took about as long as half of `done`.
Breakdown breakdown_of(const std::string& name, const std::vector<Timed>& done) {
    const auto middle = median(seconds_of(done));
    const auto& timed = *std::min_element(done.begin(), done.end(), [&](const Timed& a, const Timed& b) {
        return std::abs(a.seconds - middle) < std::abs(b.seconds - middle);
    });
    Breakdown breakdown{name, timed.inside_seconds, {}};
    for (const auto step : model::k_steps) {
        const auto found = timed.steps.find(model::to_string(step));
        if (found != timed.steps.end()) breakdown.parts.emplace_back(found->first, found->second);
    }
    return breakdown;
}

/// Waits until the agent has host memory for `bytes`, which it prepares in whole pieces.
void wait_until_prepared(const Subject& subject, Bytes bytes) {
    constexpr Milliseconds k_patience{180'000};
    constexpr Bytes k_piece = 32 * k_mib;
    if (!test::becomes_true([&] { return subject.reported("retained_bytes") >= bytes - bytes % k_piece; },
                            k_patience))
        throw test::ProcessFailure("host memory is not prepared after three minutes");
}

} // namespace

/// What came of some processes of one work.
struct Bench::Measured {
    std::vector<Timed> first, woken_after_first, later, woken, woken_at_once;
    std::vector<double> host_growth; ///< of the process, over what is stored
    std::vector<double> host_held;   ///< by the agent as it says, over the same
    std::vector<double> gpu_left;    ///< GPU memory that others lack while it sleeps, in MiB
};

Sizes large_model() {
    constexpr Bytes k_hidden = 4096 * 2;
    Sizes sizes{128'256 * k_hidden, 128'256 * k_hidden};
    for (int layer = 0; layer < 32; ++layer)
        for (const Bytes rows : {4096, 2048, 4096, 14'336, 14'336, 14'336}) sizes.push_back(rows * k_hidden);
    return sizes;
}

Sizes cache() {
    return Sizes(32, 768 * k_mib);
}

Sizes Bench::scaled(Sizes sizes) const {
    for (auto& bytes : sizes)
        bytes = std::max<Bytes>(4 * k_kib, static_cast<Bytes>(static_cast<double>(bytes) * settings_.scale));
    return sizes;
}

Bytes Bench::total(const Sizes& sizes) const {
    Bytes sum = 0;
    for (const auto bytes : scaled(sizes)) sum += bytes;
    return sum;
}

void Bench::pause() const {
    std::this_thread::sleep_for(Milliseconds(settings_.pause_ms));
}

bool Bench::shares_gpu(std::string_view what) {
    if (!device_.is_simulated || std::getenv("GPU_SLEEP_SIM_STATE")) return true;
    figures_.note(fmt::format("{} were left out: each process has a simulated GPU of its own", what));
    return false;
}

Subject Bench::start(const std::vector<Memory>& memory, const std::vector<std::string>& environment) const {
    Subject subject(environment);
    for (const auto& [kind, sizes] : memory) subject.hold({kind, scaled(sizes)});
    return subject;
}

std::optional<double> Bench::target(std::optional<double> value) const {
    return settings_.is_judged ? value : std::nullopt;
}

void Bench::add_times(const std::string& name, const std::vector<Timed>& done, std::optional<double> at_most,
                      double rate) {
    std::optional<double> limit;
    if (rate != 0) limit = static_cast<double>(done.front().kept) / rate;
    figures_.add({name, "s", seconds_of(done), target(at_most), limit});
    figures_.add(breakdown_of(name, done));
}

void Bench::add_ratio(std::string name, std::string_view of, std::string_view to,
                      std::optional<double> at_most) {
    const auto first = figures_.value_of(of);
    const auto second = figures_.value_of(to);
    if (first && second) figures_.add({std::move(name), "x", {*first / *second}, target(at_most), {}});
}

void Bench::measure(const Work& work) {
    Subject watcher; // which has nothing to do with those that sleep
    Bytes needed = 0, needed_of_host = 0;
    for (const auto& [kind, sizes] : work.memory) {
        needed += total(sizes);
        if (kind == "kept") needed_of_host += total(sizes);
    }
    const auto free = watcher.free_gpu_memory();
    if (free < needed || store::host_headroom().bytes < needed_of_host + needed_of_host / 16)
        return figures_.note(fmt::format(
            "{} was left out: it needs {} of GPU memory, of which {} are free, and {} of host memory",
            work.name, format_bytes(needed), format_bytes(free), format_bytes(needed_of_host)));
    Measured measured;
    const auto processes = work.in_detail ? settings_.first_sleeps : 1;
    for (unsigned i = 0; i < processes; ++i) {
        auto subject = start(work.memory, work.environment);
        if (work.is_prepared) wait_until_prepared(subject, needed_of_host);
        const auto sleep = [&](std::vector<Timed>& slept) {
            pause();
            slept.push_back(subject.sleep(work.arguments));
        };
        const auto awake = subject.resident_bytes();
        sleep(measured.first);
        const auto stored = static_cast<double>(measured.first.back().stored);
        const auto grown = static_cast<double>(subject.resident_bytes()) - static_cast<double>(awake);
        measured.host_growth.push_back(grown / stored);
        measured.host_held.push_back(static_cast<double>(measured.first.back().host_bytes) / stored);
        const auto left = static_cast<double>(free) - static_cast<double>(watcher.free_gpu_memory());
        measured.gpu_left.push_back(left / k_mib);
        measured.woken_after_first.push_back(subject.wake());
        if (i + 1 < processes) continue;
        for (unsigned j = 0; j < settings_.repeats; ++j) {
            sleep(measured.later);
            measured.woken_at_once.push_back(subject.wake());
            sleep(measured.later);
            pause();
            measured.woken.push_back(subject.wake());
        }
        add(work, measured);
        if (work.changes) measure_changes(work, subject);
    }
}

void Bench::add(const Work& work, const Measured& measured) {
    const auto& [first, later, wake, left] = work.targets;
    add_times(work.name + ": first sleep", measured.first, first, link_.to_host);
    add_times(work.name + ": wake at once after it", measured.woken_after_first, {}, link_.to_device);
    add_times(work.name + ": later sleep, unchanged", measured.later, later, link_.to_host);
    add_times(work.name + ": wake", measured.woken, wake, link_.to_device);
    add_times(work.name + ": wake at once", measured.woken_at_once, {}, link_.to_device);
    if (!work.in_detail) return;
    constexpr double k_most = 1.02;
    figures_.add({work.name + ": host memory asleep, of blocks not all zero",
                  "x",
                  measured.host_growth,
                  target(k_most),
                  {}});
    figures_.add(
        {work.name + ": held by the agent, of the same", "x", measured.host_held, target(k_most), {}});
    figures_.add({work.name + ": GPU memory in use asleep", "MiB", measured.gpu_left, target(left), {}});
}

void Bench::measure_changes(const Work& work, Subject& subject) {
    const auto measure_change = [&](const std::string& name, Bytes nth, double at_most) {
        std::vector<Timed> slept;
        for (unsigned i = 0; i < settings_.repeats; ++i) {
            subject.ask(fmt::format("change {}", nth));
            pause();
            slept.push_back(subject.sleep(work.arguments));
            pause();
            subject.wake();
        }
        add_times(work.name + name, slept, at_most, link_.to_host);
    };
    measure_change(": later sleep, 1 % of blocks changed", 100, 0.06);
    measure_change(": later sleep, all changed", 1, 0.33);
    add_ratio(work.name + ": all changed / first sleep", work.name + ": later sleep, all changed",
              work.name + ": first sleep", 1.0);
}

namespace {

/// What the link allows for waking 16.06 GB, with 5 % above it.
std::optional<double> wake_target(const Bench& bench) {
    constexpr double k_most = 1.05;
    return k_most * static_cast<double>(bench.total(large_model())) / bench.link().to_device;
}

void measure_model(Bench& bench) {
    bench.measure({.name = "8B model",
                   .memory = {{"kept", large_model()}, {"dropped", cache()}},
                   .targets = {0.55, 0.04, wake_target(bench), {}},
                   .in_detail = true,
                   .changes = true});
}

void measure_kept(Bench& bench) {
    bench.measure({.name = "40 GiB, all kept", .memory = {{"kept", large_model()}, {"kept", cache()}}});
}

void measure_reserved(Bench& bench) {
    // As JAX does by itself: three quarters of the GPU, hardly any of it used.
    bench.measure({.name = "105 GiB, 1 of them written",
                   .memory = {{"kept", {k_gib}}, {"zeros", Sizes(13, 8 * k_gib)}},
                   .targets = {0.20, 0.08, 0.15, {}}});
}

void measure_small(Bench& bench) {
    bench.measure({.name = "1.2 GB model",
                   .memory = {{"kept", Sizes(100, 12'000'000)}},
                   .targets = {0.10, 0.02, 0.03, {}}});
}

void measure_prepared(Bench& bench) {
    bench.measure({.name = "8B model, host memory prepared",
                   .memory = {{"kept", large_model()}},
                   .environment = {"GPU_SLEEP_PREPARE=1"},
                   .is_prepared = true});
}

/// The same work as measure_model(), by the plain algorithm.
void measure_tensors(Bench& bench) {
    const auto kept = bench.scaled(large_model());
    const auto bytes = static_cast<double>(bench.total(large_model()));
    auto sizes = listed(kept) + " " + listed(bench.scaled(cache()));
    for (const bool retains : {false, true}) {
        // Without its host memory each sleep is like the first, which takes seconds.
        const unsigned cycles = retains ? 1 + bench.settings().repeats : 1;
        const auto seconds =
            Subject().ask_numbers(fmt::format("tensors {} {} {} {} {}", retains ? "retained" : "given_back",
                                              cycles, bench.settings().pause_ms, kept.size(), sizes));
        std::vector<double> slept, woken;
        for (std::size_t i = 0; i < seconds.size(); i += 2) {
            slept.push_back(seconds[i]);
            woken.push_back(seconds[i + 1]);
        }
        const std::string name = retains ? "per tensor, retained" : "per tensor";
        const auto add = [&](const std::string& what, const std::vector<double>& samples, double rate,
                             std::initializer_list<std::string> beside) {
            bench.figures().add({name + what, "s", samples, {}, bytes / rate});
            for (const auto& ours : beside)
                bench.add_ratio(name + " / ours" + ours, name + what, "8B model" + ours);
        };
        const std::string all_changed = ": later sleep, all changed";
        add(": first sleep", {slept.front()}, bench.link().to_host, {": first sleep"});
        slept.erase(slept.begin());
        if (retains)
            add(": later sleep", slept, bench.link().to_host, {all_changed, ": later sleep, unchanged"});
        add(": wake", woken, bench.link().to_device, {": wake"});
    }
}

} // namespace

const std::vector<Case>& cases() {
    static const std::vector<Case> k_cases{
        {"model", 15 * k_gib, measure_model},       {"tensors", 15 * k_gib, measure_tensors},
        {"kept", 40 * k_gib, measure_kept},         {"reserved", 2 * k_gib, measure_reserved},
        {"small", 2 * k_gib, measure_small},        {"prepared", 15 * k_gib, measure_prepared},
        {"retained", 30 * k_gib, measure_retained}, {"switch", 30 * k_gib, measure_switch},
        {"deep", 40 * k_gib, measure_deep},         {"deep-many", 44 * k_gib, measure_deep_sleepers}};
    return k_cases;
}

} // namespace gpu_sleep::bench
