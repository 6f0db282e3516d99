// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The list of cases, and what they share.

#include "bench/sleep_cases.hpp"

#include "model/model.hpp"
#include "store/host_memory.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <thread>

namespace gpu_sleep::bench {
namespace {

std::vector<double> seconds_of(const std::vector<Timed>& operations) {
    std::vector<double> seconds;
    for (const auto& operation : operations) seconds.push_back(operation.seconds);
    return seconds;
}

Result<void> keep(Result<Timed> timed, std::vector<Timed>& done) {
    if (!timed) return std::move(timed).error();
    done.push_back(*std::move(timed));
    return {};
}

} // namespace

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

Sizes in_large_ranges(Bytes bytes) {
    constexpr Bytes k_range = 256 * k_mib;
    return Sizes(bytes / k_range, k_range);
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

Result<void> Bench::sleep(const Subject& subject, std::vector<Timed>& done,
                          std::vector<std::string> arguments) const {
    pause();
    return keep(subject.sleep(std::move(arguments)), done);
}

Result<void> Bench::wake(const Subject& subject, std::vector<Timed>& done,
                         std::vector<std::string> arguments) const {
    pause();
    return keep(subject.wake(std::move(arguments)), done);
}

void Bench::pause(unsigned times) const {
    std::this_thread::sleep_for(times * Milliseconds(settings_.pause_ms));
}

Result<bool> Bench::has_room(Subject& subject, std::string_view what, Bytes gpu, Bytes host) {
    const auto memory = subject.gpu_memory();
    if (!memory) return memory.error();
    const auto headroom = store::host_headroom().bytes;
    if (memory->free >= gpu && headroom >= host + host / 16) return true;
    figures_.note(fmt::format(
        "{} was left out: it needs {} of GPU memory, of which {} are free, and {} of host "
        "memory, of which {} may be taken",
        what, format_bytes(gpu), format_bytes(memory->free), format_bytes(host), format_bytes(headroom)));
    return false;
}

std::optional<double> Bench::target(double value) const {
    return settings_.is_judged ? std::optional(value) : std::nullopt;
}

std::optional<double> Bench::wake_target(const std::vector<Timed>& woken) const {
    constexpr double k_most = 1.05;
    return target(k_most * static_cast<double>(woken.front().kept) / link_.to_device);
}

void Bench::add_times(std::string name, const std::vector<Timed>& done, std::optional<double> at_most,
                      double rate, std::optional<Point> point) {
    std::optional<double> limit;
    if (rate != 0) limit = static_cast<double>(done.front().kept) / rate;
    figures_.add({std::move(name), "s", seconds_of(done), at_most, limit, std::move(point)});
}

void Bench::add_ratio(std::string name, std::string_view of, std::string_view to,
                      std::optional<double> at_most) {
    const auto first = figures_.value_of(of);
    const auto second = figures_.value_of(to);
    if (first && second) figures_.add({std::move(name), "x", {*first / *second}, at_most, {}});
}

void Bench::add_breakdown(std::string name, const std::vector<Timed>& done) {
    const auto middle = median(seconds_of(done));
    const auto& timed = *std::min_element(done.begin(), done.end(), [&](const Timed& a, const Timed& b) {
        return std::abs(a.seconds - middle) < std::abs(b.seconds - middle);
    });
    Breakdown breakdown{std::move(name), timed.inside_seconds, {}};
    for (const auto step : model::k_steps) {
        const auto found = timed.steps.find(model::to_string(step));
        if (found != timed.steps.end()) breakdown.parts.emplace_back(found->first, found->second);
    }
    figures_.add(std::move(breakdown));
}

const std::vector<Case>& cases() {
    static const auto k_cases = [] {
        std::vector<Case> all{
            {"model", 15 * k_gib, measure_model},
            {"tensors", 15 * k_gib, measure_tensors},
            {"training", 26 * k_gib, measure_training},
            {"small", 2 * k_gib, measure_small_model},
            {"reserved", 2 * k_gib, measure_reserved},
            {"level-2", 0, measure_level_2},
            {"footprint", 2 * k_gib, measure_footprint},
            {"retained", 30 * k_gib, measure_retained},
            {"prepared", 15 * k_gib, measure_prepared},
            {"devices", 16 * k_gib, measure_devices},
            {"switch", 30 * k_gib, measure_switch},
            {"deep", 40 * k_gib, measure_deep},
            {"deep-many", 44 * k_gib, measure_deep_sleepers},
        };
        for (const std::size_t count : {100, 1'000, 10'000, 50'000})
            all.push_back({fmt::format("ranges-{}", count), 7 * k_gib,
                           [count](Bench& bench) { return measure_ranges(bench, count); }});
        for (const Bytes gib : {1, 4, 16, 64, 100})
            all.push_back({fmt::format("size-{}", gib), gib * k_gib,
                           [gib](Bench& bench) { return measure_size(bench, gib * k_gib); }});
        return all;
    }();
    return k_cases;
}

} // namespace gpu_sleep::bench
