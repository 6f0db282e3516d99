// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The driver's checkpoint of a process as a state machine: which step follows in which state, and what each
// failure of a step means. Knows no libcuda, socket, thread or file: who drives it brings those.

#pragma once

#include "base/error.hpp"
#include "base/gpu_pair.hpp"
#include "base/units.hpp"

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace gpu_sleep::checkpoint {

/// How a process stands with the driver. Source: CUDA Driver API, CUprocessState.
enum class State : std::uint8_t {
    running = 0,
    locked = 1,       ///< its calls of the driver wait, but for those that only ask
    checkpointed = 2, ///< the same, and it has nothing on a GPU: its contents are in its host memory
    failed = 3,       ///< the driver could not go on with it: its calls never return
};

/// Locks, checkpoints, restores and unlocks processes: running, locked, checkpointed, and back the same way.
/// What is done stays done when the caller ends. The process itself answers, so every call waits while it is
/// stopped, however long. Every call's errors: no_process (it uses no GPU, or has ended), not_permitted,
/// driver_failed (among others that it is not in the state that the call is for). Source: CUDA Driver API,
/// CUDA Checkpointing; tests/gpu/driver_rules.
class Driver {
public:
    virtual ~Driver() = default;
    [[nodiscard]] virtual Result<State> state(pid_t pid) const = 0;
    /// Makes it locked. Waits until what it has given to its GPUs is done, for at most `timeout`: never
    /// forever. It is locked from the first moment of that, and stays so if the caller is killed meanwhile.
    /// Errors besides: timed_out (it is running, as before).
    [[nodiscard]] virtual Result<void> lock(pid_t pid, Milliseconds timeout) const = 0;
    /// Makes a locked one checkpointed. Takes as long as copying all of its memory does.
    [[nodiscard]] virtual Result<void> checkpoint(pid_t pid) const = 0;
    /// Makes a checkpointed one locked. Where there is too little room on a GPU it stays checkpointed, and no
    /// later restore of it works: look before. Errors besides: out_of_device_memory.
    /// With `pairs`, on other GPUs of the same kind, which are its devices from then on: it has to list every
    /// GPU that the driver sees, also those that stay. Errors besides: invalid_argument (a uuid is none, the
    /// driver restores no process so, or it does only where it was, before CUDA 13.0). It can be restored
    /// where it was afterwards.
    [[nodiscard]] virtual Result<void> restore(pid_t pid, std::span<const GpuPair> pairs) const = 0;
    /// Makes a locked one running.
    [[nodiscard]] virtual Result<void> unlock(pid_t pid) const = 0;
};

/// The contents that are left of a process that the driver has lost.
enum class Kept : std::uint8_t {
    nothing,
    by_agent, ///< its agent's contents, which can be saved
};

/// Why it is lost, in words for lost().
inline constexpr std::string_view k_failed_partway = "the driver failed partway";
inline constexpr std::string_view k_found_too_little =
    "the driver restored it with too little GPU memory, and cannot try again";

/// Returns the error of a process which the driver has lost because of `why`. Code: context_lost.
[[nodiscard]] Error lost(std::string_view why, Kept kept);
/// The same of a call's error, whose step and status it keeps.
[[nodiscard]] Error lost(Error why, Kept kept);

/// The steps of one process. After each that fails, the process stands as before it or as the words say, and
/// is lost where the code is context_lost; other errors are those of Driver. Thread-safe if `driver` is.
class Steps {
public:
    /// `driver` outlives it.
    Steps(const Driver& driver, pid_t pid, Kept kept) noexcept : driver_(driver), pid_(pid), kept_(kept) {}

    /// Locks one that was `found` running, or left locked: that one may be at work still, and the lock waits
    /// until it is not.
    [[nodiscard]] Result<void> lock(Milliseconds timeout, State found = State::running) const;
    /// Checkpoints a locked one, or undoes the lock.
    [[nodiscard]] Result<void> checkpoint() const;
    /// Unlocks it after `why`, and returns that; also for a caller that gives up before the checkpoint.
    [[nodiscard]] Error undo(Error why) const;
    /// Makes a checkpointed one locked, on other GPUs if `pairs` say so. There must be room: one that finds
    /// too little is lost, though the driver calls it checkpointed still.
    [[nodiscard]] Result<void> restore(std::span<const GpuPair> pairs) const;
    /// Makes a locked one running.
    [[nodiscard]] Result<void> unlock() const;
    /// Finds out how a process stands with which somebody else was at work: whether it is checkpointed. One
    /// that was left locked is unlocked.
    [[nodiscard]] Result<bool> settle(State found) const;

private:
    /// Returns the error of a failed step.
    [[nodiscard]] Error judge(Error why) const;

    const Driver& driver_;
    pid_t pid_;
    Kept kept_;
};

} // namespace gpu_sleep::checkpoint
