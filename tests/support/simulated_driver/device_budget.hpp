// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How much memory of each device is taken, by all processes that share the devices.

#pragma once

#include <cstdint>

namespace gpu_sleep::sim {

/// Counts bytes per process and device in a file that processes share, or in private memory when no file is
/// named. A process that died holds nothing: each keeps a file lock while it lives, and whoever runs short
/// looks at the locks. (They are POSIX record locks: a process that opens and closes the file itself lets go
/// of its own.) Thread-safe.
class DeviceBudget {
public:
    /// The budget of settings(). Ends the process if the state file cannot be used: a test that believes it
    /// shares a device must not run on its own.
    static DeviceBudget& instance();

    /// Takes `bytes` of `device`; false when that many are not free.
    [[nodiscard]] bool take(int device, std::uint64_t bytes);
    void give_back(int device, std::uint64_t bytes);
    [[nodiscard]] std::uint64_t free_bytes(int device);

private:
    struct Shared;

    DeviceBudget();
    [[nodiscard]] std::uint64_t used(int device) const;
    void claim_slot();
    void sweep_dead_processes();
    [[nodiscard]] bool slot_is_locked_by_another(int slot) const;

    int file_ = -1;
    int slot_ = 0;
    Shared* shared_ = nullptr;
};

} // namespace gpu_sleep::sim
