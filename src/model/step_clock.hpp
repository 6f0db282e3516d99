// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How long the steps of a sleep or a wake take: stamps of a clock, taken where the work is done.

#pragma once

#include "base/units.hpp"
#include "model/report.hpp"

#include <array>
#include <atomic>
#include <cstddef>

namespace gpu_sleep::model {

/// The time that threads have spent at each step, of all threads together. A stamp takes 25 ns. Thread-safe.
class StepClock {
public:
    /// Adds the time from its making to its end. Several may count at once.
    class Timed {
    public:
        /// `clock` may be null: nothing is counted. It outlives this.
        Timed(StepClock* clock, Step step) noexcept : clock_(clock), step_(step) {}
        Timed(const Timed&) = delete;
        Timed& operator=(const Timed&) = delete;
        ~Timed() {
            if (clock_) clock_->add(step_, Clock::now() - start_);
        }

    private:
        StepClock* clock_;
        Step step_;
        Clock::time_point start_ = Clock::now();
    };

    void add(Step step, Clock::duration time) noexcept {
        spent_[static_cast<std::size_t>(step)].fetch_add(time.count(), std::memory_order_relaxed);
    }
    /// In seconds.
    [[nodiscard]] StepTimes times() const noexcept {
        StepTimes times{};
        for (std::size_t i = 0; i < times.size(); ++i)
            times[i] =
                std::chrono::duration<double>(Clock::duration(spent_[i].load(std::memory_order_relaxed)))
                    .count();
        return times;
    }

private:
    std::array<std::atomic<Clock::rep>, k_steps.size()> spent_{};
};

} // namespace gpu_sleep::model
