// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// For commands: the abilities of the CUDA driver and its devices that gpu-sleep needs, and a device's link
// speed. Names no type of CUDA's.

#pragma once

#include "base/units.hpp"

#include <vector>

namespace gpu_sleep::driver {

struct DeviceCapabilities {
    int device = 0; ///< as CUDA numbers those that this process may use
    std::string name;
    std::string uuid; ///< as NVML writes it
    int compute_major = 0;
    int compute_minor = 0;
    bool has_virtual_memory = false; ///< addresses and memory can be parted, without which nothing sleeps
    bool uses_mps = false;           ///< its contexts are shared by the multi-process service
    Bytes total = 0;
    bool maps_host_memory = false; ///< at its addresses: programs can run from there
};

struct Capabilities {
    int cuda_version = 0;        ///< of the newest CUDA that it can do: 13000 is 13.0
    bool has_checkpoint = false; ///< can checkpoint other processes
    std::vector<DeviceCapabilities> devices;
};

/// Opens libcuda.so.1 (never closed again) and calls cuInit, which may take seconds, and hangs where the
/// driver does: ask in a child process. Makes no context. Errors: no_driver (there is no library, no device,
/// or it is too old), driver_failed; `driver_status` is what cuInit gave. Source: CUDA Driver API.
[[nodiscard]] Result<Capabilities> look_at_capabilities();

/// In bytes a second, of page-locked memory.
struct LinkSpeed {
    double to_host = 0;
    double to_device = 0;
};

/// Copies 64 MiB both ways, some times, and takes the fastest. Makes a context, which takes half a GiB of the
/// device while it is there: ask in a child process. Errors: driver_failed, no_driver, out_of_device_memory,
/// out_of_host_memory.
[[nodiscard]] Result<LinkSpeed> measure_link(int device);

} // namespace gpu_sleep::driver
