// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The driver's own checkpoint of other processes, for commands. Names no type of CUDA's.

#pragma once

#include "checkpoint/steps.hpp"

namespace gpu_sleep::driver {

/// The driver of this machine, for other processes; a process may restore and unlock itself, too. Needs no
/// context, and makes none. Thread-safe.
class Checkpoint final : public checkpoint::Driver {
public:
    /// Opens libcuda.so.1 (never closed again). Errors: no_driver (there is none, or it is older than 12.8).
    [[nodiscard]] static Result<Checkpoint> load();
    /// cuInit, which takes tens of milliseconds or more. Only a restore needs it, and that only where
    /// persistence mode is off. Errors: driver_failed, no_driver.
    [[nodiscard]] Result<void> initialise() const;

    /// The thread that restores the process. Errors: as for state().
    [[nodiscard]] Result<int> restore_thread(pid_t pid) const;
    [[nodiscard]] Result<checkpoint::State> state(pid_t pid) const override;
    [[nodiscard]] Result<void> lock(pid_t pid, Milliseconds timeout) const override;
    [[nodiscard]] Result<void> checkpoint(pid_t pid) const override;
    [[nodiscard]] Result<void> restore(pid_t pid, std::span<const GpuPair> pairs = {}) const override;
    [[nodiscard]] Result<void> unlock(pid_t pid) const override;

private:
    struct Calls;
    explicit Checkpoint(const Calls& calls) noexcept : calls_(&calls) {}
    [[nodiscard]] Result<void> done(int status, std::string_view call, pid_t pid) const;

    const Calls* calls_; ///< never destroyed
};

} // namespace gpu_sleep::driver
