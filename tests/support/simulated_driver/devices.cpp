// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuInit, and what the simulated devices say about themselves.

#include "support/simulated_driver/entry.hpp"
#include "support/simulated_driver/settings.hpp"
#include "support/simulated_driver/shared_state.hpp"

#include <algorithm>
#include <cstdio>

namespace gpu_sleep::sim {
namespace {

constexpr int k_driver_version = 13000;
constexpr int k_compute_major = 9;
constexpr int k_compute_minor = 0;
constexpr const char* k_device_name = "gpu-sleep simulated device";
constexpr const char* k_part_name = "gpu-sleep simulated device MIG 1g.10gb";
constexpr auto k_mps_enabled = static_cast<CUdevice_attribute>(133); // which older headers lack

int attribute_of(CUdevice_attribute attribute, CUdevice device) noexcept {
    if (attribute == k_mps_enabled) return settings().is_mps_client ? 1 : 0;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return k_compute_major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return k_compute_minor;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 132;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 0x7FFFFFFF;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 48 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return 227 << 10;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return 2048;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 3;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return device + 1;
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        return settings().maps_host_memory ? 1 : 0;
    default: return 0;
    }
}

} // namespace
} // namespace gpu_sleep::sim

SIM_ENTRY(early, 2000) cuInit(Call&, unsigned flags) {
    return flags == 0 ? begin_life() : CUDA_ERROR_INVALID_VALUE;
}

SIM_ENTRY(early, 2020) cuDriverGetVersion(Call&, int* version) {
    return give(version, k_driver_version);
}

SIM_ENTRY(safe, 2000) cuDeviceGetCount(Call& c, int* count) {
    return give(count, c.driver.device_count());
}

SIM_ENTRY(safe, 2000) cuDeviceGet(Call& c, CUdevice* device, int ordinal) {
    if (!c.driver.has_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    return give(device, ordinal);
}

SIM_ENTRY(safe, 2000) cuDeviceGetName(Call& c, char* name, int size, CUdevice device) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!name || size <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(name, static_cast<std::size_t>(size), "%s",
                  settings().has_parts ? k_part_name : k_device_name);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 11040) cuDeviceGetUuid(Call& c, CUuuid* uuid, CUdevice device) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    return give(uuid, uuid_of(SharedState::instance().own().gpus[device]));
}

SIM_ENTRY(safe, 3020) cuDeviceTotalMem(Call& c, std::size_t* bytes, CUdevice device) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    return give(bytes, settings().memory_bytes);
}

SIM_ENTRY(safe, 2000)
cuDeviceGetAttribute(Call& c, int* value, CUdevice_attribute attribute, CUdevice device) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!value || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    *value = attribute_of(attribute, device);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 4010) cuDeviceGetPCIBusId(Call& c, char* text, int size, CUdevice device) {
    if (!c.driver.has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!text || size <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(text, static_cast<std::size_t>(size), "0000:%02X:00.0",
                  static_cast<unsigned>(device + 1) & 0xFFU);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 4000) cuDeviceCanAccessPeer(Call& c, int* can, CUdevice device, CUdevice peer) {
    if (!c.driver.has_device(std::max(device, peer))) return CUDA_ERROR_INVALID_DEVICE;
    if (!can || std::min(device, peer) < 0) return CUDA_ERROR_INVALID_VALUE;
    *can = device != peer ? 1 : 0;
    return CUDA_SUCCESS;
}
