// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a deep sleep takes beside a plain one and beside the driver's checkpoint alone, and many deep sleepers
// on one GPU.

#include "bench/sleep_cases.hpp"
#include "driver/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace gpu_sleep::bench {
namespace {

const std::vector<std::string> k_held{"GPU_SLEEP_CAPTURE=1"}; ///< its calls wait while it sleeps

/// By how much deep sleeps take longer, and that beside `floor`: what the driver takes for a context alone.
void add_difference(Bench& bench, const std::string& what, const std::string& floor, double at_most) {
    auto& figures = bench.figures();
    const auto deep = figures.value_of("8B model, deep: " + what);
    const auto plain = figures.value_of("8B model, plain: " + what);
    if (deep && plain)
        figures.add({"8B model, deep beyond plain: " + what,
                     "s",
                     {*deep - *plain},
                     bench.target(at_most),
                     figures.value_of("a context, the driver alone: " + floor)});
}

void expect(const Result<void>& result) {
    if (!result) throw test::ProcessFailure(result.error().message);
}

/// What a process holds, by lock and checkpoint, and by restore and unlock, without a command.
void measure_driver_alone(Bench& bench, const std::string& name, const std::vector<Memory>& memory) {
    const auto checkpoint = driver::Checkpoint::load();
    if (!checkpoint) throw test::ProcessFailure(checkpoint.error().message);
    expect(checkpoint->initialise());
    auto subject = bench.start(memory);
    static_cast<void>(subject.free_gpu_memory()); // its context is made then
    constexpr Milliseconds k_patience{60'000};
    const auto pid = subject.pid();
    std::vector<double> slept, woken;
    constexpr int k_cycles = 2; // of which the first makes its host memory
    for (int i = 0; i < k_cycles; ++i) {
        bench.pause();
        auto start = Clock::now();
        expect(checkpoint->lock(pid, k_patience));
        expect(checkpoint->checkpoint(pid));
        slept.push_back(seconds_since(start));
        bench.pause();
        start = Clock::now();
        expect(checkpoint->restore(pid));
        expect(checkpoint->unlock(pid));
        woken.push_back(seconds_since(start));
    }
    auto& figures = bench.figures();
    figures.add({name + ": first checkpoint", "s", {slept.front()}, {}, {}});
    figures.add({name + ": later checkpoint", "s", {slept.back()}, {}, {}});
    figures.add({name + ": restore", "s", woken, {}, {}});
}

} // namespace

void measure_deep(Bench& bench) {
    if (!bench.shares_gpu("deep sleeps")) return;
    Work work{.name = "8B model, plain",
              .memory = {{"kept", large_model()}, {"dropped", cache()}},
              .environment = k_held,
              .in_detail = true};
    bench.measure(work);
    work.name = "8B model, deep";
    work.arguments = {"--deep"};
    work.targets.gpu_left_mib = 8;
    bench.measure(work);
    measure_driver_alone(bench, "a context, the driver alone", {});
    // Before a later one, host memory is page-locked that the wake has used: 12 ms for each GiB.
    const auto unpinned = 0.012 * static_cast<double>(bench.total(large_model())) / k_gib;
    add_difference(bench, "first sleep", "later checkpoint", 0.35);
    add_difference(bench, "later sleep, unchanged", "later checkpoint", 0.35 + unpinned);
    add_difference(bench, "wake", "restore", 0.25);
    measure_driver_alone(bench, "8B model, the driver alone", {{"plain", large_model()}, {"plain", cache()}});
    bench.add_ratio("8B model: later deep sleep / the driver alone", "8B model, deep: later sleep, unchanged",
                    "8B model, the driver alone: later checkpoint", 1.0 / 30);
    bench.add_ratio("8B model: deep wake / the driver alone", "8B model, deep: wake",
                    "8B model, the driver alone: restore", 1.0 / 12);
}

void measure_deep_sleepers(Bench& bench) {
    if (!bench.shares_gpu("many deep sleepers")) return;
    Subject watcher; // which has nothing to do with those that sleep
    const auto free = watcher.free_gpu_memory();
    const unsigned count = bench.settings().is_judged ? 40 : 3;
    std::vector<Subject> sleepers;
    for (unsigned i = 0; i < count; ++i) {
        sleepers.push_back(bench.start({{"kept", Sizes(4, 256 * k_mib)}}, k_held));
        sleepers.back().launch(1); // its module is loaded then
        sleepers.back().sleep({"--deep", "--on-touch", "wake"});
    }
    const auto taken = static_cast<double>(free) - static_cast<double>(watcher.free_gpu_memory());
    std::vector<double> touches;
    for (auto& each : sleepers) {
        const auto start = Clock::now();
        each.launch(1);
        touches.push_back(seconds_since(start));
    }
    const auto name = fmt::format("{} deep sleepers of 1 GiB", count);
    auto& figures = bench.figures();
    figures.add({name + ": GPU memory in use", "MiB", {taken / k_mib}, bench.target(512), {}});
    figures.add({name + ": a kernel of one of them", "s", touches, {}, {}});
    const auto longest = *std::max_element(touches.begin(), touches.end());
    figures.add({name + ": the longest of those", "s", {longest}, bench.target(0.6), {}});
}

} // namespace gpu_sleep::bench
