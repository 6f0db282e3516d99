// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How long a command waits for the answer of an agent, which may be in any program. Only computes times.

#pragma once

#include "model/report.hpp"

namespace gpu_sleep::client {

/// Until when a command waits for one agent: a limit, which copying that advances can extend, and another
/// limit after the point of no return. Calls that may take minutes (Progress::in_call) do not count, for
/// k_calls in all. Other progress extends nothing, so the wait always ends.
class AnswerTimeout {
public:
    /// More than the GPUs of one machine have.
    static constexpr Bytes k_max_bytes = 4096 * k_gib;

    struct Limits {
        Milliseconds answer{10'000}; ///< until the final reply, or the point of no return
        Milliseconds grace{0};       ///< how much longer the command waits before it gives up
        bool copies_freely = false;  ///< copying takes as long as it advances
        Milliseconds afterwards{0};  ///< for callbacks after the point of no return
        Bytes bytes = k_max_bytes;   ///< that it can have to copy: larger totals are ignored
    };

    /// Copying without a limit must advance by k_min_advance within each k_stall.
    static constexpr Milliseconds k_stall{60'000};
    static constexpr Bytes k_min_advance = k_gib;
    /// How often copying may start again, for example into files when host memory is short.
    static constexpr unsigned k_max_attempts = 8;
    /// For releasing memory after the point of no return, besides callbacks: it takes some milliseconds per
    /// GiB.
    static constexpr Milliseconds k_release{60'000};
    /// For the driver's checkpoint, which takes as long as copying all that the agent does not own. One that
    /// is given up goes on all the same.
    static constexpr Milliseconds k_checkpoint{600'000};
    /// For all calls that the agent says it is in, together, unless its limit includes copying: a slow disk
    /// may take minutes, and a dead one never ends.
    static constexpr Milliseconds k_calls{600'000};
    /// The same limits for a process that is stopped; the first for one that has said nothing yet.
    static constexpr Milliseconds k_unheard_if_stopped{300};
    static constexpr Milliseconds k_grace_if_stopped{1'000};
    static constexpr Milliseconds k_release_if_stopped{5'000};

    AnswerTimeout(const Limits& limits, Clock::time_point now) noexcept;

    /// Takes a progress message of the agent.
    void hear(const model::Progress& progress, Clock::time_point now) noexcept;

    /// The agent waits for the command: until resume() there is no end.
    void hold() noexcept { is_held_ = true; }
    /// It goes on, and has its limit anew.
    void resume(Clock::time_point now) noexcept;
    /// It has been told to pass the point of no return.
    void send_past_return(Clock::time_point now) noexcept;

    /// The agent waits for a call of the driver by the command (Progress::Phase::deep), which begins now, and
    /// has a limit of its own.
    void start_call(Clock::time_point now) noexcept;
    /// The call has ended, and the agent goes on.
    void end_call(Clock::time_point now) noexcept;

    /// No call that the agent says it is in is waited for any longer.
    void forget_calls() noexcept { calls_left_ = {}; }

    /// The end of the wait.
    [[nodiscard]] Clock::time_point end() const noexcept {
        return is_held_ ? Clock::time_point::max() : in_call_since_ ? end_ + calls_left_ : end_;
    }
    /// The end of the wait for a process that is stopped.
    [[nodiscard]] Clock::time_point end_if_stopped() const noexcept {
        return is_held_ ? Clock::time_point::max() : end_if_stopped_;
    }
    /// Whether the agent has reported the point of no return.
    [[nodiscard]] bool is_past_return() const noexcept { return is_past_return_; }

private:
    void pass_return(Clock::time_point now) noexcept;
    void hear_of_call(bool is_in_one, Clock::time_point now) noexcept;
    void hear_of_copying(Bytes done, Bytes total, Clock::time_point now) noexcept;

    Limits limits_;
    Clock::time_point end_;
    Clock::time_point end_if_stopped_;
    Clock::time_point end_if_stopped_once_heard_;
    bool is_held_ = false;
    std::optional<Clock::time_point> in_call_since_;
    Clock::duration calls_left_ = k_calls;
    bool is_past_return_ = false;
    unsigned attempts_ = 0;
    Bytes total_ = 0;    ///< of this attempt
    Bytes done_ = 0;     ///< of it, and never less
    Bytes rewarded_ = 0; ///< of that, what has moved the end
};

} // namespace gpu_sleep::client
