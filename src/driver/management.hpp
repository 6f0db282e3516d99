// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asks the driver's management library (NVML), for commands, how much memory of each GPU of the machine is
// free, and which process has how much. It needs no context and no permission.

#pragma once

#include "base/units.hpp"

#include <sys/types.h>

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

/// How a GPU is set up. Numbers are 0, and modes false, where NVML does not know.
struct GpuSetup {
    int index = 0; ///< as Gpu has it
    std::string uuid;
    std::string name;
    bool is_persistent = false;
    bool is_divided = false;     ///< into instances (MIG)
    bool is_exclusive = false;   ///< one process may have a context on it
    bool is_prohibited = false;  ///< none may
    int link_generation = 0;     ///< of PCIe, now: an idle link may be slower
    int link_width = 0;          ///< lanes, now
    int max_link_generation = 0; ///< that the GPU and its slot can do
    int max_link_width = 0;
};

/// The driver, and all GPUs of the machine.
struct Setup {
    std::string driver_version; ///< such as 580.159
    std::vector<GpuSetup> gpus;
};

/// All GPUs, now. Opens libnvidia-ml.so.1 the first time (never closed again). Not thread-safe.
/// Errors: no_driver (no such library, or one too old), driver_failed. Source: NVML API Reference.
[[nodiscard]] Result<std::vector<Gpu>> look_at_gpus();

/// How they are set up; otherwise the same.
[[nodiscard]] Result<Setup> look_at_setup();

} // namespace gpu_sleep::driver
