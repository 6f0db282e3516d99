// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A first sleep, later ones, and their wakes: what most cases of sleep_bench measure.

#pragma once

#include "bench/sleep_cases.hpp"

namespace gpu_sleep::bench {

/// How the cycles of a case are told: figures "NAME: first sleep", "NAME: LATER" and "NAME: wake".
struct Telling {
    std::string name;
    std::string later = "later sleep, unchanged";
    struct Aims {
        std::optional<double> first;
        std::optional<double> later;
        std::optional<double> wake;
    } aims{};
    bool is_beside_link = true; ///< with the ratio to what the link allows
    bool has_breakdown = true;  ///< where the time goes
    struct Along {
        std::string axis; ///< empty: the figures are no points of a plot
        double at = 0;
    } along{};
};

struct Cycles {
    std::vector<Timed> first;
    std::vector<Timed> later;
    std::vector<Timed> woken;

    struct How {
        unsigned repeats = 1;                                 ///< of the later sleeps
        unsigned pauses = 1;                                  ///< before each operation
        std::vector<std::string> arguments{};                 ///< of the later sleeps
        std::function<Result<void>(Subject&)> before_later{}; ///< called first, unless empty
    };
    /// Of what `subject` holds. Errors: those of Subject.
    [[nodiscard]] static Result<Cycles> of(const Bench& bench, Subject& subject, const How& how);
    void add_to(Bench& bench, const Telling& telling) const;
};

} // namespace gpu_sleep::bench
