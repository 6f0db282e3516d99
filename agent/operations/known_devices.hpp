// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What changes of the process's devices only when a deep sleep ends on other GPUs, asked of the driver once:
// later it may be out of reach.

#pragma once

#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "program_memory/program_memory.hpp"

#include <map>
#include <string>

namespace gpu_sleep::agent::operations {

/// Thread-safe.
class KnownDevices {
public:
    struct Device {
        std::string name;           ///< empty where the driver could not be asked
        std::string uuid;           ///< likewise
        bool is_part = false;       ///< of a GPU (MIG)
        bool is_mps_client = false; ///< this process, there
    };

    explicit KnownDevices(const ProgramMemory& memory) noexcept : memory_(memory) {}

    [[nodiscard]] Device find(int device);
    /// The devices may be other GPUs from now on.
    void forget() noexcept;

private:
    const ProgramMemory& memory_;
    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<int, Device> devices_ GPU_SLEEP_GUARDED_BY(mutex_);
};

} // namespace gpu_sleep::agent::operations
