// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The cases of sleep_bench, and what they share. Each measures in processes of its own, and can be run alone.

#pragma once

#include "bench/figures.hpp"
#include "bench/subject.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::bench {

inline constexpr int k_offload = 0; // as in gpu_sleep.h
inline constexpr int k_discard = 2;

using Sizes = std::vector<Bytes>;

/// Llama-3-8B in bf16: for each layer q, k with v, o, gate, up and down; the embedding, and the output.
[[nodiscard]] Sizes large_model();
/// Its cache.
[[nodiscard]] Sizes cache();
/// So many ranges of 256 MiB that it is `bytes`.
[[nodiscard]] Sizes in_large_ranges(Bytes bytes);

struct Settings {
    double scale = 1; ///< of all sizes
    unsigned repeats = 5;
    unsigned first_sleeps = 3; ///< processes that fall asleep for the first time
    unsigned pause_ms = 350;   ///< before each operation
    bool is_judged = false;    ///< the whole work on a real device: targets count
};

/// One run of some cases. Not thread-safe.
class Bench {
public:
    Bench(Settings settings, Link link, Devices devices, std::string setting)
        : settings_(settings), link_(link), devices_(std::move(devices)),
          figures_("sleep_bench", std::move(setting)) {}

    [[nodiscard]] const Settings& settings() const noexcept { return settings_; }
    [[nodiscard]] const Link& link() const noexcept { return link_; }
    [[nodiscard]] const Devices& devices() const noexcept { return devices_; }
    [[nodiscard]] Figures& figures() noexcept { return figures_; }

    [[nodiscard]] Sizes scaled(Sizes sizes) const;
    [[nodiscard]] Bytes total(const Sizes& sizes) const;
    /// A number that says little on the simulated driver, where a small one will do.
    [[nodiscard]] unsigned count(unsigned whole) const noexcept {
        return settings_.is_judged ? whole : 1 + whole / 200;
    }

    /// An operation after the pause, at the end of `done`. Errors: those of Subject.
    [[nodiscard]] Result<void> sleep(const Subject& subject, std::vector<Timed>& done,
                                     std::vector<std::string> arguments = {}) const;
    [[nodiscard]] Result<void> wake(const Subject& subject, std::vector<Timed>& done,
                                    std::vector<std::string> arguments = {}) const;
    /// The driver scrubs released memory in the background, which takes bandwidth from the copies.
    void pause(unsigned times = 1) const;
    /// Whether the GPU and the host have so much; otherwise notes that `what` is left out.
    [[nodiscard]] Result<bool> has_room(Subject& subject, std::string_view what, Bytes gpu, Bytes host);

    /// A target counts for the whole work on a real device only.
    [[nodiscard]] std::optional<double> target(double value) const;
    /// What the link allows for waking, with 5 % above it.
    [[nodiscard]] std::optional<double> wake_target(const std::vector<Timed>& woken) const;

    /// `rate`: what the link allows in bytes a second; 0 where it does not matter.
    void add_times(std::string name, const std::vector<Timed>& done, std::optional<double> at_most,
                   double rate = 0, std::optional<Point> point = {});
    /// The time of one figure over that of another, if there are both.
    void add_ratio(std::string name, std::string_view of, std::string_view to, std::optional<double> at_most);
    /// Where the time went in the operation that took about as long as half of `done`.
    void add_breakdown(std::string name, const std::vector<Timed>& done);

private:
    Settings settings_;
    Link link_;
    Devices devices_;
    Figures figures_;
};

struct Case {
    std::string name;
    Bytes host = 0; ///< memory that it keeps contents in, at most
    std::function<Result<void>(Bench&)> run;
};

/// In the order in which they run.
[[nodiscard]] const std::vector<Case>& cases();

[[nodiscard]] Result<void> measure_model(Bench& bench);
[[nodiscard]] Result<void> measure_tensors(Bench& bench);
[[nodiscard]] Result<void> measure_training(Bench& bench);
[[nodiscard]] Result<void> measure_small_model(Bench& bench);
[[nodiscard]] Result<void> measure_reserved(Bench& bench);
[[nodiscard]] Result<void> measure_level_2(Bench& bench);
[[nodiscard]] Result<void> measure_footprint(Bench& bench);
[[nodiscard]] Result<void> measure_retained(Bench& bench);
[[nodiscard]] Result<void> measure_prepared(Bench& bench);
[[nodiscard]] Result<void> measure_deep(Bench& bench);
[[nodiscard]] Result<void> measure_deep_sleepers(Bench& bench);
[[nodiscard]] Result<void> measure_devices(Bench& bench);
[[nodiscard]] Result<void> measure_switch(Bench& bench);
/// So many bytes, and so many ranges: one point each of how times grow.
[[nodiscard]] Result<void> measure_size(Bench& bench, Bytes bytes);
[[nodiscard]] Result<void> measure_ranges(Bench& bench, std::size_t count);

} // namespace gpu_sleep::bench
