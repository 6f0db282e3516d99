// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the driver's management library (NVML) says of all GPUs of the machine, for commands: what is free,
// and who has what. It needs no context and no permission.

#pragma once

#include "base/result.hpp"
#include "base/units.hpp"

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace gpu_sleep::driver {

/// A process that uses a GPU.
struct GpuProcess {
    pid_t pid = 0; ///< as NVML numbers it: in a container it may be that of the machine
    std::optional<Bytes>
        bytes; ///< of the GPU's memory, its context included; nothing where NVML does not know
};

struct Gpu {
    int index = 0;    ///< as NVML counts; a program's own numbers may be others
    std::string uuid; ///< "GPU-...", the same on every start of the machine
    std::string name;
    Bytes total = 0;
    Bytes free = 0;
    bool is_persistent = false;        ///< its driver stays loaded while nobody uses it
    std::vector<GpuProcess> processes; ///< that compute on it
};

/// All GPUs, now. Opens libnvidia-ml.so.1 the first time (never closed again). Not thread-safe.
/// Errors: no_driver (no such library, or one too old), driver_failed. Source: NVML API Reference.
[[nodiscard]] Result<std::vector<Gpu>> look_at_gpus();

} // namespace gpu_sleep::driver
