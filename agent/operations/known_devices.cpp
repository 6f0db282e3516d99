// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking for what is not known yet.

#include "operations/known_devices.hpp"

#include "driver/context.hpp"

namespace gpu_sleep::agent::operations {

KnownDevices::Device KnownDevices::find(int device) {
    {
        const MutexLock lock(mutex_);
        if (const auto known = devices_.find(device); known != devices_.end()) return known->second;
    }
    if (!memory_.may_call_driver()) return {};
    const auto& api = memory_.api();
    Device found{driver::device_name(api, device), driver::device_uuid(api, device), false,
                 driver::is_mps_client(api, device)};
    found.is_part = found.name.find(" MIG ") != std::string::npos;
    if (found.name.empty() || found.uuid.empty()) return found; // who comes next asks again
    const MutexLock lock(mutex_);
    devices_[device] = found;
    return found;
}

void KnownDevices::forget() noexcept {
    const MutexLock lock(mutex_);
    devices_.clear();
}

} // namespace gpu_sleep::agent::operations
