// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How long a command waits for an agent, which may be anybody's program. Plain arithmetic over times.

#pragma once

#include "model/model.hpp"

namespace gpu_sleep::cli {

/// Until when one agent is waited for: a limit, which copying that advances may move, and another one from
/// the point of no return on. What else it says of its progress moves nothing, so that it always comes to an
/// end.
class AnswerTimeout {
public:
    struct Limits {
        Milliseconds answer{10'000}; ///< until the last word, or the point of no return
        Milliseconds grace{0};       ///< and so much longer before the agent is given up
        bool copies_freely = false;  ///< copying takes as long as it advances
        Milliseconds afterwards{0};  ///< that callbacks may take behind the point of no return
    };

    /// Copying that takes as long as it advances: so many bytes, within each of these times.
    static constexpr Milliseconds k_stall{60'000};
    static constexpr Bytes k_min_advance = k_gib;
    /// More than the GPUs of one machine hold: who announces more is not believed.
    static constexpr Bytes k_max_bytes = 4096 * k_gib;
    /// How often copying may begin anew: into files when host memory is short, say.
    static constexpr unsigned k_max_attempts = 8;
    /// For what comes behind the point of no return, besides callbacks: some milliseconds a GiB.
    static constexpr Milliseconds k_release{60'000};
    /// A process that has not answered by then, and is seen to be stopped, is given up at once.
    static constexpr Milliseconds k_grace_if_stopped{1'000};
    static constexpr Milliseconds k_release_if_stopped{5'000};

    AnswerTimeout(const Limits& limits, Clock::time_point now) noexcept;

    /// Takes in what the agent says of its progress.
    void hear(const model::Progress& progress, Clock::time_point now) noexcept;

    /// When it is over.
    [[nodiscard]] Clock::time_point end() const noexcept { return end_; }
    /// When it is over for a process that is stopped.
    [[nodiscard]] Clock::time_point end_if_stopped() const noexcept { return end_if_stopped_; }
    /// Whether the agent has said that it heeds no withdrawal any more.
    [[nodiscard]] bool is_past_return() const noexcept { return is_past_return_; }

private:
    void hear_of_copying(Bytes done, Bytes total, Clock::time_point now) noexcept;

    Limits limits_;
    Clock::time_point end_;
    Clock::time_point end_if_stopped_;
    bool is_past_return_ = false;
    unsigned attempts_ = 0;
    Bytes total_ = 0;    ///< of this attempt
    Bytes done_ = 0;     ///< of it, and never less
    Bytes rewarded_ = 0; ///< of that, what has moved the end
};

} // namespace gpu_sleep::cli
