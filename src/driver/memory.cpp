// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The virtual memory calls of the driver.

#include "driver/memory.hpp"

#include "driver/context.hpp"

#include <array>
#include <thread>

namespace gpu_sleep::driver {
namespace {

std::string describe(AddressSpan span) {
    return fmt::format("range {:#x} of {}", span.address, format_bytes(span.bytes));
}

} // namespace

Result<VaReservation> VaReservation::create(const Api& api, Bytes bytes) {
    CUdeviceptr address = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuMemAddressReserve, "cannot reserve device addresses", &address, bytes, 0, 0,
                         0);
    return VaReservation(api, {address, bytes});
}

Result<DeviceBuffer> DeviceBuffer::create(const Api& api, Bytes bytes) {
    CUdeviceptr address = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuMemAlloc, "cannot allocate memory to work in", &address, bytes);
    return DeviceBuffer(api, {address, bytes});
}

void DeviceBuffer::give_back(const Api& api, AddressSpan span) noexcept {
    api.cuMemFree(span.address);
}

bool DeviceBuffer::free() noexcept {
    if (api().cuMemFree(get().address) == CUDA_SUCCESS) forget();
    return get().bytes == 0;
}

bool can_map_host_memory(const Api& api, int device) {
    // Headers before CUDA 13 lack its name.
    constexpr auto k_is_supported = static_cast<CUdevice_attribute>(141);
    return device_attribute(api, device, k_is_supported) != 0;
}

Result<MemoryKind> MemoryKind::of_device(const Api& api, int device) {
    return with(api, device, {CU_MEM_LOCATION_TYPE_DEVICE, device});
}

Result<MemoryKind> MemoryKind::of_host_near(const Api& api, int device) {
    if (!can_map_host_memory(api, device))
        return make_error(ErrorCode::driver_failed,
                          "the driver cannot map host memory at addresses of GPU {}: programs cannot run "
                          "from host memory without cuMemCreate (HOST_NUMA)",
                          device);
    const auto node = device_attribute(api, device, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
    return with(api, device, {CU_MEM_LOCATION_TYPE_HOST_NUMA, std::max(node, 0)}); // -1: there are no nodes
}

Result<MemoryKind> MemoryKind::with(const Api& api, int device, CUmemLocation location) {
    MemoryKind kind;
    kind.device_ = device;
    auto& p = kind.properties_;
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location = location;
    if (device_attribute(api, device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (!kind.is_of_host() &&
        device_attribute(api, device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
        p.allocFlags.gpuDirectRDMACapable = 1;
    std::size_t granularity = 0;
    GPU_SLEEP_DRIVER_TRY(api, cuMemGetAllocationGranularity, "cannot query the granularity", &granularity, &p,
                         CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    kind.granularity_ = granularity;
    return kind;
}

Result<PhysicalMemory> MemoryKind::create(const Api& api, Bytes bytes, Milliseconds retry_time) const {
    constexpr auto k_pause = std::chrono::milliseconds(10);
    const auto deadline = Clock::now() + retry_time;
    for (;;) {
        PhysicalMemory::Handle handle = 0;
        const auto status = api.cuMemCreate(&handle, bytes, &properties_, 0);
        if (status == CUDA_SUCCESS) return PhysicalMemory(api, handle);
        if (status != CUDA_ERROR_OUT_OF_MEMORY || Clock::now() + k_pause > deadline) {
            const auto where =
                is_of_host() ? std::string("in host memory") : fmt::format("on GPU {}", device());
            auto error = to_error(api, status, "cuMemCreate",
                                  fmt::format("cannot create {} {}", format_bytes(bytes), where));
            if (is_of_host() && error.code == ErrorCode::out_of_device_memory)
                error.code = ErrorCode::out_of_host_memory;
            return error;
        }
        std::this_thread::sleep_for(k_pause);
    }
}

Result<void> map(const Api& api, AddressSpan span, PhysicalMemory::Handle handle) {
    GPU_SLEEP_DRIVER_TRY(api, cuMemMap, "cannot map " + describe(span), span.address, span.bytes, 0, handle,
                         0);
    return {};
}

Result<void> set_access(const Api& api, AddressSpan span, DeviceMask devices) {
    std::array<CUmemAccessDesc, k_max_devices> grants{};
    std::size_t count = 0;
    for (int device = 0; device < k_max_devices; ++device) {
        if ((devices >> device & 1) == 0) continue;
        auto& grant = grants[count++];
        grant.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        grant.location.id = device;
        grant.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    GPU_SLEEP_DRIVER_TRY(api, cuMemSetAccess, "cannot grant access to " + describe(span), span.address,
                         span.bytes, grants.data(), count);
    return {};
}

Result<void> unmap(const Api& api, AddressSpan span) {
    GPU_SLEEP_DRIVER_TRY(api, cuMemUnmap, "cannot unmap " + describe(span), span.address, span.bytes);
    return {};
}

Result<void> release(const Api& api, PhysicalMemory::Handle handle) {
    GPU_SLEEP_DRIVER_TRY(api, cuMemRelease, "cannot release memory", handle);
    return {};
}

Result<UniqueFd> export_memory(const Api& api, PhysicalMemory::Handle handle) {
    const RelaxedCaptureMode relaxed(api);
    int descriptor = -1;
    GPU_SLEEP_DRIVER_TRY(api, cuMemExportToShareableHandle, "cannot share memory", &descriptor, handle,
                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    UniqueFd memory(descriptor);
    ::fcntl(memory.get(), F_SETFD, FD_CLOEXEC);
    return memory;
}

} // namespace gpu_sleep::driver
