// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Making host memory ready before the first sleep, for hosts on which that takes long.

#pragma once

#include "program_memory/program_memory.hpp"

namespace gpu_sleep::agent::operations {

/// Whether it is too early for what is due at `time`: then the memory is tidied again at that time, for
/// somebody else asked for this one.
[[nodiscard]] inline bool is_early(const ProgramMemory& memory, Clock::time_point time) {
    const auto now = Clock::now();
    if (now < time) memory.tidy_within(std::chrono::ceil<Milliseconds>(time - now));
    return now < time;
}

/// The preparation that is wanted, and how far it is. All but the atomics is used on the operations thread
/// alone.
struct Preparation {
    /// How long the program's memory must not have changed; none: nothing is prepared.
    std::atomic<Milliseconds> settled_after{Milliseconds(0)};
    std::atomic<bool> is_urgent{false}; ///< the program has asked for it: it counts as settled
    bool has_slept = false;             ///< it has done its service

    /// Prepares a little, if it was asked for and the program's memory is settled: as much as a sleep of
    /// level 1 would keep of what is awake, within what may be retained. After a sleep, which leaves its own
    /// memory to the next one, gives back what it has not taken. Returns whether there is more to do at once.
    [[nodiscard]] bool prepare_some(ProgramMemory& memory);

private:
    void look_again_within(ProgramMemory& memory, Milliseconds time) {
        next_look_ = Clock::now() + time;
        memory.tidy_within(time);
    }
    /// Gives back what is prepared beyond what is wanted, and notes how things stand. Returns a device for
    /// which more is wanted.
    [[nodiscard]] std::optional<int> look(ProgramMemory& memory);
    /// Gives back what is prepared.
    void end(ProgramMemory& memory) noexcept;

    Clock::time_point next_look_{};
    Bytes wanted_ = 0;           ///< at the last look
    Bytes prepared_ = 0;         ///< then
    Clock::time_point since_{};  ///< when `wanted_` became what it is
    bool has_given_way_ = false; ///< what was prepared had to go, and `wanted_` has not changed since
};

} // namespace gpu_sleep::agent::operations
