// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The processors near a device, whose threads get memory that is near it, too.

#pragma once

#include <sched.h>

#include <filesystem>
#include <string>

namespace gpu_sleep::store {

/// While it lives, the thread that has made it runs on processors near the PCI device `bus_id`
/// ("0000:17:00.0"), as far as it may. Memory that the thread touches first then lies near the device, unless
/// the process has a policy of its own for that. Does nothing where all processors are near, where that is
/// not known or memory runs out, and for an empty `bus_id`. Source: sysfs-bus-pci ("local_cpulist"),
/// cpuset(7) ("List format"), sched_setaffinity(2), numa(7).
class StayNear {
public:
    explicit StayNear(const std::string& bus_id, const char* devices = "/sys/bus/pci/devices") noexcept;
    StayNear(const StayNear&) = delete;
    StayNear& operator=(const StayNear&) = delete;
    ~StayNear();

    [[nodiscard]] bool has_moved() const noexcept { return has_moved_; }

private:
    void move_near(const std::string& bus_id, const std::filesystem::path& devices);

    cpu_set_t before_{};
    bool has_moved_ = false;
};

} // namespace gpu_sleep::store
