// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The driver's own checkpoint of other processes, for commands. Names no type of CUDA's.

#pragma once

#include "base/gpu_pair.hpp"
#include "base/result.hpp"
#include "base/units.hpp"

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gpu_sleep::driver {

/// How a process stands with the driver. Source: CUDA Driver API, CUprocessState.
enum class CheckpointState : std::uint8_t {
    running = 0,
    locked = 1,       ///< its calls of the driver wait, but for those that only ask
    checkpointed = 2, ///< the same, and it has nothing on a GPU: its contents are in its host memory
    failed = 3,       ///< the driver could not go on with it: its calls never return
};

[[nodiscard]] std::string_view to_string(CheckpointState state) noexcept;

/// More than the driver keeps on a GPU for a process and NVML does not count as that one's: 5.6 MiB for a
/// context, by tests/bench/RESULTS.md. A restore takes it, too.
inline constexpr Bytes k_not_counted = 16 * k_mib;

/// Locks, checkpoints, restores and unlocks other processes: running, locked, checkpointed, and back the same
/// way. What is done stays done when the caller ends, and a process may restore and unlock itself. Needs no
/// context, and makes none. The process itself answers, so every call waits while it is stopped, however
/// long. Thread-safe. Every call's errors: no_process (it uses no GPU, or has ended), not_permitted,
/// driver_failed (among others that it is not in the state that the call is for). Source: CUDA Driver API,
/// CUDA Checkpointing; tests/gpu/driver_rules.
class Checkpoint {
public:
    /// Opens libcuda.so.1 (never closed again). Errors: no_driver (there is none, or it is older than 12.8).
    [[nodiscard]] static Result<Checkpoint> load();
    /// cuInit, which takes tens of milliseconds or more. Only a restore needs it, and that only where
    /// persistence mode is off. Errors: driver_failed, no_driver.
    [[nodiscard]] Result<void> initialise() const;

    [[nodiscard]] Result<CheckpointState> state(pid_t pid) const;
    /// Makes it locked. Waits until what it has given to its GPUs is done, for at most `timeout`: never
    /// forever. It is locked from the first moment of that, and stays so if the caller is killed meanwhile.
    /// Errors besides: timed_out (it is running, as before).
    [[nodiscard]] Result<void> lock(pid_t pid, Milliseconds timeout) const;
    /// Makes a locked one checkpointed. Takes as long as copying all of its memory does.
    [[nodiscard]] Result<void> checkpoint(pid_t pid) const;
    /// Makes a checkpointed one locked. Where there is too little room on a GPU it stays checkpointed, and no
    /// later restore of it works: look before. Errors besides: out_of_device_memory.
    /// With `pairs`, on other GPUs of the same kind, which are its devices from then on: it has to list every
    /// GPU that the driver sees, also those that stay. Errors besides: invalid_argument (a uuid is none, the
    /// driver restores no process so, or it does only where it was, before CUDA 13.0). It can be restored
    /// where it was afterwards.
    [[nodiscard]] Result<void> restore(pid_t pid, std::span<const GpuPair> pairs = {}) const;
    /// Makes a locked one running.
    [[nodiscard]] Result<void> unlock(pid_t pid) const;

private:
    struct Calls;
    explicit Checkpoint(const Calls& calls) noexcept : calls_(&calls) {}
    [[nodiscard]] Result<void> done(int status, std::string_view call, pid_t pid) const;

    const Calls* calls_; ///< never destroyed
};

} // namespace gpu_sleep::driver
