// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What it gains that host memory is made ready before the first sleep, and what that costs the program.

#include "bench/sleep_cases.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace gpu_sleep::bench {
namespace {

/// Processes with the same weights that fall asleep for the first time.
struct Prepared {
    std::vector<Timed> slept;
    std::vector<Timed> woken;
    std::vector<double> launches;  ///< microseconds each, before
    std::vector<double> preparing; ///< seconds that it took
};

Result<void> launch(const Bench& bench, Subject& subject, std::vector<double>* launches) {
    const auto seconds = subject.launch(bench.count(100'000));
    if (!seconds) return seconds.error();
    if (launches) launches->push_back(1e6 * *seconds);
    return {};
}

/// Waits until the agent has prepared host memory for `bytes`, which it does in whole pieces. The program
/// launches meanwhile.
Result<void> wait_until_prepared(const Bench& bench, Subject& subject, Bytes bytes, Prepared& prepared) {
    constexpr std::chrono::seconds k_patience{180};
    constexpr Bytes k_piece = 32 * k_mib;
    const auto start = Clock::now();
    bytes -= bytes % k_piece;
    Bytes held = 0;
    for (; Clock::now() - start < k_patience; bench.pause()) {
        const auto now = subject.retained_bytes();
        if (!now) return now.error();
        if (*now >= bytes) {
            prepared.preparing.push_back(std::chrono::duration<double>(Clock::now() - start).count());
            return {};
        }
        GPU_SLEEP_TRY(launch(bench, subject, *now > held ? &prepared.launches : nullptr));
        held = *now;
    }
    return make_error(ErrorCode::internal, "{} of {} are prepared after three minutes", format_bytes(held),
                      format_bytes(bytes));
}

/// One process more of `prepared`.
Result<void> measure_one(const Bench& bench, bool is_prepared, Prepared& prepared) {
    auto subject = is_prepared ? Subject::start({"GPU_SLEEP_PREPARE=1"}) : Subject::start();
    if (!subject) return std::move(subject).error();
    GPU_SLEEP_TRY(subject->hold("weights", k_offload, bench.scaled(large_model())));
    constexpr int k_rounds = 5; // the first of which warms up
    for (int round = 0; !is_prepared && round < k_rounds; ++round)
        GPU_SLEEP_TRY(launch(bench, *subject, round > 0 ? &prepared.launches : nullptr));
    if (is_prepared)
        GPU_SLEEP_TRY(wait_until_prepared(bench, *subject, bench.total(large_model()), prepared));
    GPU_SLEEP_TRY(bench.sleep(*subject, prepared.slept));
    return bench.wake(*subject, prepared.woken);
}

} // namespace

Result<void> measure_prepared(Bench& bench) {
    Prepared with;
    Prepared without;
    for (unsigned i = 0; i < std::min(2U, bench.settings().first_sleeps); ++i) {
        GPU_SLEEP_TRY(measure_one(bench, false, without));
        GPU_SLEEP_TRY(measure_one(bench, true, with));
    }
    const auto add = [&](const std::string& name, const Prepared& done) {
        bench.add_times(name + ": first sleep", done.slept, {}, bench.link().to_host);
        bench.add_times(name + ": wake after it", done.woken, {}, bench.link().to_device);
        bench.add_breakdown(name + ": first sleep", done.slept);
    };
    add("8B model, nothing prepared", without);
    add("8B model, host memory prepared", with);
    auto& figures = bench.figures();
    figures.add({"8B model: preparing took", "s", with.preparing, {}, {}});
    bench.add_ratio("8B model: first sleep, prepared / not", "8B model, host memory prepared: first sleep",
                    "8B model, nothing prepared: first sleep", {});
    if (with.launches.empty()) {
        figures.note("nothing was launched while host memory was prepared: that took no time");
        return {};
    }
    figures.add({"awake, a launch: nothing prepared", "us", without.launches, {}, {}});
    figures.add({"awake, a launch: while host memory is prepared", "us", with.launches, {}, {}});
    bench.add_ratio("awake, a launch: while prepared / not", "awake, a launch: while host memory is prepared",
                    "awake, a launch: nothing prepared", {});
    return {};
}

} // namespace gpu_sleep::bench
