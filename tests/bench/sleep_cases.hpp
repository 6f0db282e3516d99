// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The cases of sleep_bench, and what they share. Each measures in processes of its own, and can be run alone.

#pragma once

#include "bench/figures.hpp"
#include "bench/subject.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpu_sleep::bench {

/// Llama-3-8B in bf16, 16.06 GB: for each layer q, k with v, o, gate, up and down; the embedding, and the
/// output.
[[nodiscard]] Sizes large_model();
/// Its cache, 24 GiB.
[[nodiscard]] Sizes cache();

struct Settings {
    double scale = 1; ///< of all sizes
    unsigned repeats = 5;
    unsigned first_sleeps = 3; ///< processes that fall asleep for the first time
    unsigned pause_ms = 350;   ///< before each operation, unless it comes at once
    bool is_judged = false;    ///< the whole work on a real device: targets count
};

/// A program, and how it is put to sleep.
struct Work {
    std::string name;
    std::vector<Memory> memory;
    struct Targets {
        std::optional<double> first{};
        std::optional<double> later{};
        std::optional<double> wake{};
        std::optional<double> gpu_left_mib{};
    } targets{};
    std::vector<std::string> arguments{};   ///< of gpu-sleep
    std::vector<std::string> environment{}; ///< of the program
    bool in_detail = false;   ///< several processes sleep for the first time, and with what they take then
    bool is_prepared = false; ///< it waits until host memory is ready for its first sleep
    bool changes = false;     ///< also when some or all of what it keeps has changed
};

/// One run of some cases. Not thread-safe. All throws as Subject.
class Bench {
public:
    Bench(Settings settings, Link link, Device device, std::string setting)
        : settings_(settings), link_(link), device_(std::move(device)),
          figures_("sleep_bench", std::move(setting)) {}

    [[nodiscard]] const Settings& settings() const noexcept { return settings_; }
    [[nodiscard]] const Link& link() const noexcept { return link_; }
    [[nodiscard]] const Device& device() const noexcept { return device_; }
    [[nodiscard]] Figures& figures() noexcept { return figures_; }

    [[nodiscard]] Sizes scaled(Sizes sizes) const;
    [[nodiscard]] Bytes total(const Sizes& sizes) const;
    /// A number that says little on the simulated driver, where a small one will do.
    [[nodiscard]] unsigned count(unsigned whole) const noexcept {
        return settings_.is_judged ? whole : 1 + whole / 200;
    }
    /// The driver scrubs released memory in the background, which takes bandwidth from the copies.
    void pause() const;
    /// Whether processes share their GPU; otherwise notes that `what` is left out.
    [[nodiscard]] bool shares_gpu(std::string_view what);
    /// A process with `memory`, scaled.
    [[nodiscard]] Subject start(const std::vector<Memory>& memory,
                                const std::vector<std::string>& environment = {}) const;

    /// A first sleep, later ones, and their wakes: after a pause, and at once. Adds "NAME: first sleep",
    /// "NAME: wake at once after it", "NAME: later sleep, unchanged", "NAME: wake" and "NAME: wake at once".
    /// Notes it where there is no room for it.
    void measure(const Work& work);

    /// A target counts for the whole work on a real device only.
    [[nodiscard]] std::optional<double> target(std::optional<double> value) const;
    /// `rate`: what the link allows in bytes a second; 0 where it does not matter.
    void add_times(const std::string& name, const std::vector<Timed>& done,
                   std::optional<double> at_most = {}, double rate = 0);
    /// The value of one figure over that of another, if there are both.
    void add_ratio(std::string name, std::string_view of, std::string_view to,
                   std::optional<double> at_most = {});

private:
    struct Measured;
    void measure_changes(const Work& work, Subject& subject);
    void add(const Work& work, const Measured& measured);

    Settings settings_;
    Link link_;
    Device device_;
    Figures figures_;
};

struct Case {
    std::string_view name;
    Bytes host = 0; ///< memory that it keeps contents in, at most
    void (*run)(Bench&);
};

/// In the order in which they run.
[[nodiscard]] const std::vector<Case>& cases();

void measure_retained(Bench& bench);
void measure_deep(Bench& bench);
void measure_deep_sleepers(Bench& bench);
void measure_switch(Bench& bench);

} // namespace gpu_sleep::bench
