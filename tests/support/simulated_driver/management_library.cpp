// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A libnvidia-ml.so.1 for the devices of the simulated driver: what the product asks of NVML, and no more.

#include "support/simulated_driver/control.h"

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#define SIM_NVML extern "C" __attribute__((visibility("default")))

namespace {

constexpr int k_success = 0;
constexpr int k_invalid_argument = 2;
constexpr int k_not_supported = 3;
constexpr int k_insufficient_size = 7;

struct Memory {
    unsigned long long total, free, used;
};

struct ProcessInfo {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

/// A handle is the device's number and one.
int device_of(void* handle) {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(handle)) - 1;
}

} // namespace

SIM_NVML int nvmlInit_v2() {
    return cuInit(0) == CUDA_SUCCESS ? k_success : 9; // NVML_ERROR_DRIVER_NOT_LOADED
}

SIM_NVML const char* nvmlErrorString(int status) {
    return status == k_success ? "Success" : "an error of the simulated library";
}

SIM_NVML int nvmlDeviceGetCount_v2(unsigned* count) {
    int devices = 0;
    if (cuDeviceGetCount(&devices) != CUDA_SUCCESS) return k_invalid_argument;
    *count = static_cast<unsigned>(devices);
    return k_success;
}

SIM_NVML int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
    *handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(index) + 1);
    return k_success;
}

SIM_NVML int nvmlDeviceGetUUID(void* handle, char* text, unsigned bytes) {
    const auto length = std::snprintf(text, bytes, "GPU-6770752d-736c-6565-702d-73696d2d2d%02x",
                                      static_cast<unsigned>(device_of(handle)));
    return length < static_cast<int>(bytes) ? k_success : k_insufficient_size;
}

SIM_NVML int nvmlDeviceGetName(void* handle, char* text, unsigned bytes) {
    return cuDeviceGetName(text, static_cast<int>(bytes), device_of(handle)) == CUDA_SUCCESS
               ? k_success
               : k_invalid_argument;
}

SIM_NVML int nvmlDeviceGetPersistenceMode(void*, int* mode) {
    *mode = 1;
    return k_success;
}

SIM_NVML int nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
    return std::snprintf(text, bytes, "580.0") < static_cast<int>(bytes) ? k_success : k_insufficient_size;
}

SIM_NVML int nvmlDeviceGetMigMode(void*, unsigned*, unsigned*) {
    return k_not_supported;
}

SIM_NVML int nvmlDeviceGetComputeMode(void*, int* mode) {
    *mode = 0;
    return k_success;
}

SIM_NVML int nvmlDeviceGetCurrPcieLinkGeneration(void*, unsigned* generation) {
    *generation = 1; // as of one that is idle
    return k_success;
}

SIM_NVML int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* generation) {
    *generation = 4;
    return k_success;
}

SIM_NVML int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* width) {
    *width = 16;
    return k_success;
}

SIM_NVML int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* width) {
    *width = 16;
    return k_success;
}

SIM_NVML int nvmlDeviceGetMemoryInfo(void* handle, Memory* memory) {
    std::size_t total = 0;
    if (cuDeviceTotalMem(&total, device_of(handle)) != CUDA_SUCCESS) return k_invalid_argument;
    const auto free = sim_free_bytes(device_of(handle));
    *memory = {total, free, total - free};
    return k_success;
}

SIM_NVML int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, ProcessInfo* infos) {
    std::vector<sim_process> found(sim_processes(nullptr, 0, device_of(handle)));
    found.resize(sim_processes(found.data(), found.size(), device_of(handle)));
    const auto room = *count;
    *count = static_cast<unsigned>(found.size());
    if (found.size() > room) return k_insufficient_size;
    for (std::size_t i = 0; i < found.size(); ++i)
        infos[i] = {static_cast<unsigned>(found[i].pid), found[i].bytes, ~0U, ~0U};
    return k_success;
}
