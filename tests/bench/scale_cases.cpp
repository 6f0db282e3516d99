// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How the times grow: with bytes, with ranges, with GPUs; and what hardly costs: zeros, dropping.

#include "bench/cycles.hpp"
#include "bench/sleep_cases.hpp"

#include <algorithm>
#include <string>

namespace gpu_sleep::bench {
namespace {

/// Pauses before an operation on so much that the driver scrubs it for longer than one.
constexpr unsigned k_longer = 3;

/// Sleeps that copy everything, and wakes, of as much on each of some devices.
Result<void> measure_side_by_side(Bench& bench, const std::string& name, int devices) {
    const auto sizes = bench.scaled(in_large_ranges(8 * k_gib));
    auto subject = Subject::start();
    if (!subject) return std::move(subject).error();
    for (int device = 0; device < devices; ++device)
        GPU_SLEEP_TRY(subject->hold("weights", k_offload, sizes, device));
    const auto cycles = Cycles::of(
        bench, *subject, {.repeats = std::min(3U, bench.settings().repeats), .arguments = {"--copy-all"}});
    if (!cycles) return cycles.error();
    cycles->add_to(
        bench, {.name = name, .later = "sleep, all copied", .is_beside_link = false, .has_breakdown = false});
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
    const auto cycles =
        Cycles::of(bench, *subject, {.repeats = std::min(3U, bench.settings().repeats), .pauses = k_longer});
    if (!cycles) return cycles.error();
    cycles->add_to(bench, {.name = "105 GiB, 1 of them written",
                           .later = "later sleep",
                           .aims = {bench.target(0.20), bench.target(0.08), bench.target(0.15)},
                           .is_beside_link = false});
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
        GPU_SLEEP_TRY(bench.sleep(*subject, slept, {"--level", "2", "--yes"}));
        GPU_SLEEP_TRY(bench.wake(*subject, woken));
    }
    bench.add_times("120 GiB: sleep at level 2", slept, bench.target(0.08));
    bench.add_times("120 GiB: wake from level 2, zeroed", woken, {});
    bench.add_breakdown("120 GiB: sleep at level 2", slept);
    bench.add_breakdown("120 GiB: wake from level 2, zeroed", woken);
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
    const auto cycles =
        Cycles::of(bench, *subject, {.repeats = is_large ? 1U : 2U, .pauses = is_large ? k_longer : 1});
    if (!cycles) return cycles.error();
    const bool is_largest = bytes == 100 * k_gib;
    Telling telling{.name = name, .has_breakdown = is_largest};
    telling.along = {"GiB", static_cast<double>(whole) / k_gib};
    if (is_largest) telling.aims = {bench.target(3.2), bench.target(0.10), bench.wake_target(cycles->woken)};
    cycles->add_to(bench, telling);
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
    const auto cycles = Cycles::of(bench, *subject, {.repeats = 1});
    if (!cycles) return cycles.error();
    Telling telling{.name = name, .is_beside_link = false};
    telling.along = {"thousand ranges", static_cast<double>(count) / 1000};
    cycles->add_to(bench, telling);
    return {};
}

} // namespace gpu_sleep::bench
