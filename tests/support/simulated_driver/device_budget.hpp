// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How much memory of each device is taken, by all processes that share the devices.

#pragma once

#include "support/simulated_driver/settings.hpp"

#include <cstdint>
#include <span>

namespace gpu_sleep::sim {

struct SharedProcess;

/// Counts bytes per process and device in the SharedState. A process that died holds nothing: whoever runs
/// short looks who lives. Thread-safe.
class DeviceBudget {
public:
    static DeviceBudget& instance();

    /// Takes `bytes` of `device`; false when that many are not free.
    [[nodiscard]] bool take(int device, std::uint64_t bytes);
    void give_back(int device, std::uint64_t bytes);
    [[nodiscard]] std::uint64_t free_bytes(int device);

    /// What the process is charged for of a GPU, whichever device that is to it; memory that it imported,
    /// once its exporter has let go. Needs SharedState::Lock.
    [[nodiscard]] static std::uint64_t used_by(const SharedProcess& process, int gpu);

    /// A checkpoint and a restore of another process: all that it uses is free, and taken again, its devices
    /// being `gpus` from then on; false if there is no room for it, and then nothing changes.
    void put_away(SharedProcess& process);
    [[nodiscard]] bool bring_back(SharedProcess& process, std::span<const int, k_max_devices> gpus);
};

} // namespace gpu_sleep::sim
