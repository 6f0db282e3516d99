// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A libnvidia-ml.so.1 for the devices of the simulated driver: what the product asks of NVML, and no more.

#include "support/simulated_driver/control.h"

#include <cuda.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
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

/// What never changes, learned at the start: the real library asks no driver of the process for it, which may
/// be locked or checkpointed later.
struct Device {
    std::string name;
    std::size_t total = 0;
};
std::vector<Device>& devices() {
    static std::vector<Device> all;
    return all;
}

/// What GPU_SLEEP_SIM_DELAY=nvmlDeviceGetMemoryInfo:TIME says, in whole milliseconds; of no other function
/// here.
std::chrono::milliseconds delay() {
    constexpr std::string_view k_name = "nvmlDeviceGetMemoryInfo:";
    const char* const text = std::getenv("GPU_SLEEP_SIM_DELAY");
    const char* const found = text ? std::strstr(text, k_name.data()) : nullptr;
    return std::chrono::milliseconds(found ? std::atoi(found + k_name.size()) : 0);
}

const Device* find(void* handle) {
    const auto index = static_cast<std::size_t>(device_of(handle));
    return index < devices().size() ? &devices()[index] : nullptr;
}

} // namespace

SIM_NVML int nvmlInit_v2() {
    constexpr int k_driver_not_loaded = 9;
    int count = 0;
    if (cuInit(0) != CUDA_SUCCESS || cuDeviceGetCount(&count) != CUDA_SUCCESS) return k_driver_not_loaded;
    devices().clear();
    for (int device = 0; device < count; ++device) {
        std::array<char, 96> name{};
        std::size_t total = 0;
        if (cuDeviceGetName(name.data(), static_cast<int>(name.size()), device) != CUDA_SUCCESS ||
            cuDeviceTotalMem(&total, device) != CUDA_SUCCESS)
            return k_driver_not_loaded;
        devices().push_back({name.data(), total});
    }
    return k_success;
}

SIM_NVML const char* nvmlErrorString(int status) {
    return status == k_success ? "Success" : "an error of the simulated library";
}

// In a process that is checkpointed itself it waits, as with driver 580.
SIM_NVML int nvmlDeviceGetCount_v2(unsigned* count) {
    CUprocessState state{};
    while (cuCheckpointProcessGetState(::getpid(), &state) == CUDA_SUCCESS &&
           state == CU_PROCESS_STATE_CHECKPOINTED)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    *count = static_cast<unsigned>(devices().size());
    return k_success;
}

SIM_NVML int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
    *handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(index) + 1);
    return k_success;
}

SIM_NVML int nvmlDeviceGetUUID(void* handle, char* text, unsigned bytes) {
    constexpr unsigned k_length = 40;
    CUuuid uuid{};
    if (bytes <= k_length) return k_insufficient_size;
    if (cuDeviceGetUuid(&uuid, device_of(handle)) != CUDA_SUCCESS) return k_invalid_argument;
    text += std::sprintf(text, "GPU");
    for (int i = 0; i < 16; ++i)
        text += std::sprintf(text, i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-%02x" : "%02x",
                             static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
    return k_success;
}

SIM_NVML int nvmlDeviceGetName(void* handle, char* text, unsigned bytes) {
    const auto* const device = find(handle);
    if (!device) return k_invalid_argument;
    return std::snprintf(text, bytes, "%s", device->name.c_str()) < static_cast<int>(bytes)
               ? k_success
               : k_insufficient_size;
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
    const auto* const device = find(handle);
    if (!device) return k_invalid_argument;
    std::this_thread::sleep_for(delay());
    const auto free = sim_free_bytes(device_of(handle));
    *memory = {device->total, free, device->total - free};
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
