// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking the driver's devices, and timing copies.

#include "driver/capabilities.hpp"

#include "driver/checkpoint.hpp"
#include "driver/context.hpp"
#include "driver/memory.hpp"

#include <cuda.h>

#include <algorithm>

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

/// A stream, page-locked memory and memory of the current device, for copies between the two.
class CopyBench {
public:
    static constexpr Bytes k_bytes = 64 * k_mib;

    explicit CopyBench(const Api& api) noexcept : api_(api) {}
    CopyBench(const CopyBench&) = delete;
    CopyBench& operator=(const CopyBench&) = delete;
    ~CopyBench() {
        if (stream_) api_.cuStreamDestroy(stream_);
        if (device_) api_.cuMemFree(device_);
        if (host_) api_.cuMemFreeHost(host_);
    }

    Result<void> prepare() {
        GPU_SLEEP_DRIVER_TRY(api_, cuMemHostAlloc, "cannot allocate page-locked memory", &host_, k_bytes, 0);
        GPU_SLEEP_DRIVER_TRY(api_, cuMemAlloc, "cannot allocate GPU memory", &device_, k_bytes);
        GPU_SLEEP_DRIVER_TRY(api_, cuStreamCreate, "cannot create a stream", &stream_,
                             CU_STREAM_NON_BLOCKING);
        return {};
    }

    /// The fastest of some rounds, in bytes a second; `copy` begins one.
    template <class Copy>
    Result<double> best(Copy&& copy) {
        constexpr int k_rounds = 6;
        constexpr int k_copies = 4; // of a round: what it takes to begin is hidden
        double best = 0;
        for (int round = 0; round < k_rounds; ++round) {
            const auto start = Clock::now();
            for (int i = 0; i < k_copies; ++i)
                if (const CUresult status = copy(host_, device_, stream_); status != CUDA_SUCCESS)
                    return to_error(api_, status, "cuMemcpyAsync", "cannot copy");
            GPU_SLEEP_DRIVER_TRY(api_, cuStreamSynchronize, "cannot copy", stream_);
            const auto bytes = static_cast<double>(k_copies) * static_cast<double>(k_bytes);
            best = std::max(best, bytes / std::max(seconds_since(start), 1e-9));
        }
        return best;
    }

private:
    const Api& api_;
    void* host_ = nullptr;
    CUdeviceptr device_ = 0;
    CUstream stream_ = nullptr;
};

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
    const auto context = GPU_SLEEP_TRY(PrimaryContext::retain(api, device));
    const CurrentContext current(api, context.get());
    CopyBench bench(api);
    GPU_SLEEP_TRY(bench.prepare());
    const auto to_device = GPU_SLEEP_TRY(bench.best([&](void* host, CUdeviceptr memory, CUstream stream) {
        return api.cuMemcpyHtoDAsync(memory, host, CopyBench::k_bytes, stream);
    }));
    const auto to_host = GPU_SLEEP_TRY(bench.best([&](void* host, CUdeviceptr memory, CUstream stream) {
        return api.cuMemcpyDtoHAsync(host, memory, CopyBench::k_bytes, stream);
    }));
    return LinkSpeed{to_host, to_device};
}

} // namespace gpu_sleep::driver
