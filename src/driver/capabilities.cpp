// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking the driver's devices, and timing copies.

#include "driver/capabilities.hpp"

#include "driver/checkpoint.hpp"
#include "driver/device_session.hpp"

namespace gpu_sleep::driver {
namespace {

DeviceCapabilities capabilities_of(const Api& api, CUdevice device) {
    DeviceCapabilities found;
    found.device = device;
    found.name = device_name(api, device);
    found.uuid = device_uuid(api, device);
    found.compute_major = device_attribute(api, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    found.compute_minor = device_attribute(api, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    found.has_virtual_memory =
        device_attribute(api, device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
    found.uses_mps = is_mps_client(api, device);
    found.maps_host_memory = can_map_host_memory(api, device);
    if (const auto total = device_memory(api, device)) found.total = *total;
    return found;
}

constexpr Bytes k_link_bytes = 64 * k_mib;

/// The fastest of some rounds, in bytes a second; `copy` queues a copy of k_link_bytes.
template <class Copy>
Result<double> best_of(DeviceSession& session, Copy&& copy) {
    constexpr int k_rounds = 6;
    constexpr int k_copies = 4; // of a round: what it takes to begin is hidden
    double best = 0;
    for (int round = 0; round < k_rounds; ++round) {
        const auto start = Clock::now();
        for (int i = 0; i < k_copies; ++i) GPU_SLEEP_TRY(copy());
        GPU_SLEEP_TRY(session.synchronize());
        const auto bytes = static_cast<double>(k_copies) * static_cast<double>(k_link_bytes);
        best = std::max(best, bytes / std::max(seconds_since(start), 1e-9));
    }
    return best;
}

} // namespace

Result<Capabilities> look_at_capabilities() {
    const auto api = GPU_SLEEP_TRY(Api::load());
    GPU_SLEEP_TRY(initialise(api));
    Capabilities found;
    if (api.cuDriverGetVersion) static_cast<void>(api.cuDriverGetVersion(&found.cuda_version));
    found.has_checkpoint = Checkpoint::load().has_value();
    const auto count = GPU_SLEEP_TRY(device_count(api));
    for (int i = 0; i < count; ++i) {
        CUdevice device = 0;
        GPU_SLEEP_DRIVER_TRY(api, cuDeviceGet, "cannot query a GPU", &device, i);
        found.devices.push_back(capabilities_of(api, device));
    }
    return found;
}

Result<LinkSpeed> measure_link(int device) {
    const auto api = GPU_SLEEP_TRY(Api::load());
    GPU_SLEEP_TRY(initialise(api));
    auto context = GPU_SLEEP_TRY(PrimaryContext::retain(api, device));
    const auto session = GPU_SLEEP_TRY(DeviceSession::open(api, std::move(context)));
    const auto current = session->enter();
    GPU_SLEEP_TRY(current.check());
    const auto host = GPU_SLEEP_TRY(MappedBuffer::create(api, k_link_bytes));
    const auto memory = GPU_SLEEP_TRY(DeviceBuffer::create(api, k_link_bytes));
    const auto to_device = GPU_SLEEP_TRY(best_of(*session, [&] {
        return session->copy_to_device(memory.span().address, host->data(), k_link_bytes);
    }));
    const auto to_host = GPU_SLEEP_TRY(best_of(
        *session, [&] { return session->copy_to_host(host->data(), memory.span().address, k_link_bytes); }));
    return LinkSpeed{to_host, to_device};
}

} // namespace gpu_sleep::driver
