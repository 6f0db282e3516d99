// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The processors near a device, whose threads get memory that is near it, too.

#pragma once

#include <filesystem>
#include <string>

namespace gpu_sleep::store {

/// Has the calling thread run on processors near the PCI device `bus_id` ("0000:17:00.0") from now on, as far
/// as it may. Memory that it touches first then lies near the device, unless the process has a policy of its
/// own for that. Does nothing where all processors are near, where that is not known, and for an empty
/// `bus_id`. Returns whether it did something. May throw for want of memory. Source: sysfs-bus-pci
/// ("local_cpulist"), cpuset(7) ("List format"), sched_setaffinity(2), numa(7).
bool stay_near(const std::string& bus_id, const std::filesystem::path& devices = "/sys/bus/pci/devices");

} // namespace gpu_sleep::store
