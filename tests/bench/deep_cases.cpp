// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a deep sleep takes beside a plain one and beside the driver's checkpoint alone, and many deep sleepers
// on one GPU.

#include "bench/sleep_cases.hpp"
#include "driver/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

namespace gpu_sleep::bench {
namespace {

const std::vector<std::string> k_held{"GPU_SLEEP_CAPTURE=1"}; ///< its calls wait while it sleeps

/// The GPU as a process sees it that has nothing to do with those that sleep.
class Watcher {
public:
    [[nodiscard]] static Result<Watcher> start() {
        auto subject = Subject::start();
        if (!subject) return std::move(subject).error();
        const auto memory = subject->gpu_memory();
        if (!memory) return memory.error();
        return Watcher(*std::move(subject), memory->free);
    }

    /// GPU memory in MiB that others have taken since start().
    [[nodiscard]] Result<double> taken() {
        const auto memory = subject_.gpu_memory();
        if (!memory) return memory.error();
        return (static_cast<double>(free_) - static_cast<double>(memory->free)) / k_mib;
    }

private:
    Watcher(Subject subject, Bytes free) : subject_(std::move(subject)), free_(free) {}

    Subject subject_;
    Bytes free_;
};

/// Whether processes share their GPU; otherwise notes that `what` is left out.
bool share_gpu(Bench& bench, std::string_view what) {
    if (!bench.devices().is_simulated || std::getenv("GPU_SLEEP_SIM_STATE")) return true;
    bench.figures().note(fmt::format("{} were left out: each process has a simulated GPU of its own", what));
    return false;
}

/// One way of sleeping, over several processes.
struct Way {
    std::string name;
    std::vector<std::string> arguments;
    std::vector<Timed> first{};
    std::vector<Timed> later{};
    std::vector<Timed> woken{};
    std::vector<double> left{}; ///< on the GPU while asleep, in MiB
};

/// One process more of `way`.
Result<void> measure_one(const Bench& bench, Way& way) {
    auto watcher = Watcher::start();
    if (!watcher) return std::move(watcher).error();
    auto subject = Subject::start(k_held);
    if (!subject) return std::move(subject).error();
    GPU_SLEEP_TRY(subject->hold("weights", k_offload, bench.scaled(large_model())));
    GPU_SLEEP_TRY(subject->hold("kv_cache", k_discard, bench.scaled(cache())));
    for (unsigned i = 0; i <= bench.settings().repeats; ++i) {
        GPU_SLEEP_TRY(bench.sleep(*subject, i == 0 ? way.first : way.later, way.arguments));
        const auto left = watcher->taken();
        if (!left) return left.error();
        way.left.push_back(*left);
        GPU_SLEEP_TRY(bench.wake(*subject, way.woken));
    }
    return {};
}

void add_figures(Bench& bench, const Way& way, std::optional<double> most_left) {
    bench.add_times(way.name + ": first sleep", way.first, {}, bench.link().to_host);
    bench.add_times(way.name + ": later sleep, unchanged", way.later, {});
    bench.add_times(way.name + ": wake", way.woken, {}, bench.link().to_device);
    bench.figures().add({way.name + ": GPU memory in use asleep", "MiB", way.left, most_left, {}});
    std::vector<double> outside;
    for (const auto& each : way.later) outside.push_back(each.seconds - each.inside_seconds);
    bench.figures().add({way.name + ": of a later sleep, outside of the agent", "s", outside, {}, {}});
}

/// By how much deep sleeps take longer, and that beside `floor`: what the driver takes for a context alone.
void add_difference(Bench& bench, const Way& deep, const Way& plain, const std::string& what,
                    const std::string& floor, double at_most) {
    auto& figures = bench.figures();
    const auto first = figures.value_of(deep.name + ": " + what);
    const auto second = figures.value_of(plain.name + ": " + what);
    if (!first || !second) return;
    const auto name = "8B model, deep beyond plain: " + what;
    figures.add({name, "s", {*first - *second}, bench.target(at_most), figures.value_of(floor)});
}

/// What a process holds, by lock and checkpoint, and by restore and unlock, without a command.
Result<void> measure_driver_alone(Bench& bench, const std::string& name, const Sizes& sizes) {
    const auto checkpoint = driver::Checkpoint::load();
    if (!checkpoint) return checkpoint.error();
    if (const auto ready = checkpoint->initialise(); !ready) return ready.error();
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    GPU_SLEEP_TRY(subject->hold_plainly(bench.scaled(sizes)));
    constexpr Milliseconds k_patience{60'000};
    const auto pid = subject->pid();
    std::vector<double> slept;
    std::vector<double> woken;
    constexpr int k_cycles = 2; // of which the first makes its host memory
    for (int i = 0; i < k_cycles; ++i) {
        bench.pause();
        auto start = Clock::now();
        GPU_SLEEP_TRY(checkpoint->lock(pid, k_patience));
        GPU_SLEEP_TRY(checkpoint->checkpoint(pid));
        slept.push_back(seconds_since(start));
        bench.pause();
        start = Clock::now();
        GPU_SLEEP_TRY(checkpoint->restore(pid));
        GPU_SLEEP_TRY(checkpoint->unlock(pid));
        woken.push_back(seconds_since(start));
    }
    auto& figures = bench.figures();
    figures.add({name + ": first checkpoint", "s", {slept.front()}, {}, {}});
    figures.add({name + ": later checkpoint", "s", {slept.back()}, {}, {}});
    figures.add({name + ": restore", "s", woken, {}, {}});
    return {};
}

/// Processes of 1 GiB that sleep deeply until they are used.
class Sleepers {
public:
    Result<void> add(const Bench& bench) {
        auto subject = Subject::start(k_held);
        if (!subject) return std::move(subject).error();
        all_.push_back(*std::move(subject));
        auto& added = all_.back();
        GPU_SLEEP_TRY(added.hold("weights", k_offload, bench.scaled(in_large_ranges(k_gib))));
        if (const auto ran = added.launch(1); !ran) return ran.error(); // its module is loaded then
        if (const auto slept = added.sleep({"--deep", "--on-touch", "wake"}); !slept) return slept.error();
        return {};
    }

    /// Has each launch a kernel, one at a time. Returns the seconds until each was done.
    [[nodiscard]] Result<std::vector<double>> touch() {
        std::vector<double> touches;
        for (auto& each : all_) {
            const auto start = Clock::now();
            if (const auto ran = each.launch(1); !ran) return ran.error();
            touches.push_back(seconds_since(start));
        }
        return touches;
    }

private:
    std::vector<Subject> all_;
};

} // namespace

Result<void> measure_deep(Bench& bench) {
    if (!share_gpu(bench, "deep sleeps")) return {};
    Way plain{"8B model, plain", {}};
    Way deep{"8B model, deep", {"--deep"}};
    for (unsigned i = 0; i < bench.settings().first_sleeps; ++i)
        for (auto* const way : {&plain, &deep}) GPU_SLEEP_TRY(measure_one(bench, *way));
    add_figures(bench, plain, {});
    add_figures(bench, deep, bench.target(8));
    GPU_SLEEP_TRY(measure_driver_alone(bench, "a context, the driver alone", {}));
    // Before a later one, host memory is page-locked that the wake has used: 12 ms for each GiB.
    const auto unpinned = 0.012 * static_cast<double>(bench.total(large_model())) / k_gib;
    const std::string checkpoint = "a context, the driver alone: later checkpoint";
    add_difference(bench, deep, plain, "first sleep", checkpoint, 0.35);
    add_difference(bench, deep, plain, "later sleep, unchanged", checkpoint, 0.35 + unpinned);
    add_difference(bench, deep, plain, "wake", "a context, the driver alone: restore", 0.25);
    auto all = large_model();
    for (const auto bytes : cache()) all.push_back(bytes);
    GPU_SLEEP_TRY(measure_driver_alone(bench, "8B model, the driver alone", all));
    bench.add_ratio("8B model: later deep sleep / the driver alone", "8B model, deep: later sleep, unchanged",
                    "8B model, the driver alone: later checkpoint", bench.target(1.0 / 30));
    bench.add_ratio("8B model: deep wake / the driver alone", "8B model, deep: wake",
                    "8B model, the driver alone: restore", bench.target(1.0 / 12));
    return {};
}

Result<void> measure_deep_sleepers(Bench& bench) {
    if (!share_gpu(bench, "many deep sleepers")) return {};
    auto watcher = Watcher::start();
    if (!watcher) return std::move(watcher).error();
    Sleepers sleepers;
    const int count = bench.settings().is_judged ? 40 : 3;
    for (int i = 0; i < count; ++i) GPU_SLEEP_TRY(sleepers.add(bench));
    const auto taken = watcher->taken();
    if (!taken) return taken.error();
    const auto touches = sleepers.touch();
    if (!touches) return touches.error();
    const auto name = fmt::format("{} deep sleepers of 1 GiB", count);
    auto& figures = bench.figures();
    figures.add({name + ": GPU memory in use", "MiB", {*taken}, bench.target(512), {}});
    figures.add({name + ": a kernel of one of them", "s", *touches, {}, {}});
    figures.add({name + ": the longest of those",
                 "s",
                 {*std::max_element(touches->begin(), touches->end())},
                 bench.target(0.6),
                 {}});
    return {};
}

} // namespace gpu_sleep::bench
