// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A process of the agent's that does what this process cannot do itself in a deep sleep: driver 580 keeps the
// management library waiting in a process that is checkpointed, and locks and checkpoints none that asks for
// it itself.

#pragma once

#include "base/fd.hpp"
#include "base/units.hpp"

#include <functional>
#include <memory>
#include <vector>

namespace gpu_sleep::agent::outside {

/// Memory of one GPU, as NVML has it.
struct OutsideGpu {
    std::string uuid; ///< "GPU-..."
    Bytes total = 0;
    Bytes free = 0;
    Bytes used = 0; ///< by this process; 0 where NVML does not know it by its pid, as in some containers
};

/// How long a look may last at most, also where the process outside hardly gets a processor.
inline constexpr Milliseconds k_longest_look{30'000};

class OutsideRun;

/// The program beside the agent's library (agent/outside). It is a child's child of this process, and the
/// child an unusual one: no SIGCHLD comes of either, and no wait() of the program finds them. Not
/// thread-safe.
class Outside {
public:
    /// Finds the program, and takes the environment for it. Takes the loader's lock. Errors: no_driver (it is
    /// not there, or a filter of system calls may forbid it).
    [[nodiscard]] static Result<Outside> open();

    /// Has the driver lock this process, by `deadline`, and checkpoint it; no other thread may call the
    /// driver. `goes_on` is asked meanwhile, and false ends it. Whatever comes of it, the program outside has
    /// ended then, and the driver knows how this process stands. Takes no lock that a thread of the program
    /// might hold. Errors: driver_failed (in words).
    [[nodiscard]] Result<void> checkpoint(Clock::time_point deadline,
                                          const std::function<bool()>& goes_on) const;

private:
    friend class OutsideLooks;

    [[nodiscard]] bool is_there() const noexcept;

    std::string program_;
    /// The same, for who sleeps while an upgrade replaces or removes it: another version may say other words.
    HeldFile file_;
    std::vector<std::string> environment_;
};

/// Looks again and again, by one process outside: NVML takes 20 ms to begin with. Not thread-safe.
class OutsideLooks {
public:
    /// Starts nothing yet. `outside` outlives it.
    explicit OutsideLooks(const Outside& outside) noexcept;
    OutsideLooks& operator=(OutsideLooks&&) = delete;
    ~OutsideLooks();

    /// All GPUs, now. A process that has ended since the last look is replaced. Takes no lock that a thread
    /// of the program might hold. Errors: no_driver (the program could not be started, or NVML has not
    /// answered after 5 s in which the process could run, or k_longest_look).
    [[nodiscard]] Result<std::vector<OutsideGpu>> look();

private:
    const Outside* outside_;
    std::unique_ptr<OutsideRun> run_; ///< none before the first look, and after one that failed
};

} // namespace gpu_sleep::agent::outside
