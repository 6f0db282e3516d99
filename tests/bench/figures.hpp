// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a benchmark program found, as a table for people and as JSON for everything else.

#pragma once

#include "base/error.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpu_sleep::bench {

/// The middle of `samples`, of which there is at least one.
[[nodiscard]] double median(std::vector<double> samples);

/// One measured quantity. All numbers are in `unit`.
struct Figure {
    std::string name;
    std::string unit;             ///< such as "s", "GB/s" or "MiB"
    std::vector<double> samples;  ///< at least one
    std::optional<double> target; ///< the most that the value may be
    std::optional<double> limit;  ///< what the hardware makes of the same work, measured in the same run

    [[nodiscard]] double value() const { return median(samples); }
    [[nodiscard]] bool is_met() const { return !target || value() <= *target; }
};

/// Where the time of one operation went, in seconds. Parts run side by side: their sum may be more than the
/// whole.
struct Breakdown {
    std::string name;
    double whole = 0;
    std::vector<std::pair<std::string, double>> parts; ///< the same in all breakdowns of a run
};

/// The figures of one run of a benchmark program. Not thread-safe.
class Figures {
public:
    /// `setting` says in words what was measured on, such as the driver and the device.
    Figures(std::string program, std::string setting)
        : program_(std::move(program)), setting_(std::move(setting)) {}

    void add(Figure figure) { figures_.push_back(std::move(figure)); }
    void add(Breakdown breakdown) { breakdowns_.push_back(std::move(breakdown)); }
    /// The value of the figure, if there is one of that name.
    [[nodiscard]] std::optional<double> value_of(std::string_view name) const;
    /// Adds a sentence that a reader of the figures needs, such as what was left out and why.
    void note(std::string sentence) { notes_.push_back(std::move(sentence)); }

    /// Writes tables to standard output: value, target, whether it is met, and the ratio to the limit; and
    /// where the time went.
    void print() const;
    [[nodiscard]] bool all_met() const;
    /// Writes one JSON object with every sample. Errors: io_failed.
    [[nodiscard]] Result<void> write_json(const std::string& path) const;

private:
    std::string program_;
    std::string setting_;
    std::vector<Figure> figures_;
    std::vector<Breakdown> breakdowns_;
    std::vector<std::string> notes_;
};

/// What every benchmark program does last: prints, writes JSON unless `json_path` is empty, and returns the
/// exit status: 1 if the file could not be written, or if `check` and a target is missed.
[[nodiscard]] int finish(const Figures& figures, const std::string& json_path, bool check);

} // namespace gpu_sleep::bench
