// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The calls of NVML, by declarations of our own: its header comes with no driver.

#include "driver/management.hpp"

#include "driver/library.hpp"

#include <array>
#include <cstddef>

namespace gpu_sleep::driver {
namespace {

constexpr int k_success = 0;
constexpr int k_insufficient_size = 7;
constexpr unsigned long long k_not_known = ~0ULL;

using Device = void*;

/// nvmlMemory_t.
struct Memory {
    unsigned long long total = 0;
    unsigned long long free = 0;
    unsigned long long used = 0;
};

/// nvmlProcessInfo_t, as nvmlDeviceGetComputeRunningProcesses_v3 has it.
struct ProcessInfo {
    unsigned pid = 0;
    unsigned long long used = 0;
    unsigned gpu_instance = 0;
    unsigned compute_instance = 0;
};
static_assert(sizeof(ProcessInfo) == 24);

struct Nvml : SymbolTable {
    using SymbolTable::SymbolTable;

    int (*init)() = needed("nvmlInit_v2");
    const char* (*error_string)(int) = needed("nvmlErrorString");
    int (*count)(unsigned*) = needed("nvmlDeviceGetCount_v2");
    int (*device)(unsigned, Device*) = needed("nvmlDeviceGetHandleByIndex_v2");
    int (*uuid)(Device, char*, unsigned) = needed("nvmlDeviceGetUUID");
    int (*name)(Device, char*, unsigned) = needed("nvmlDeviceGetName");
    int (*memory)(Device, Memory*) = needed("nvmlDeviceGetMemoryInfo");
    int (*persistence)(Device, int*) = needed("nvmlDeviceGetPersistenceMode");
    int (*processes)(Device, unsigned*, ProcessInfo*) = needed("nvmlDeviceGetComputeRunningProcesses_v3");
    int (*driver_version)(char*, unsigned) = optional("nvmlSystemGetDriverVersion");
    int (*mig_mode)(Device, unsigned* current, unsigned* pending) = optional("nvmlDeviceGetMigMode");
    int (*compute_mode)(Device, int*) = optional("nvmlDeviceGetComputeMode");
    int (*link_generation)(Device, unsigned*) = optional("nvmlDeviceGetCurrPcieLinkGeneration");
    int (*link_width)(Device, unsigned*) = optional("nvmlDeviceGetCurrPcieLinkWidth");
    int (*max_link_generation)(Device, unsigned*) = optional("nvmlDeviceGetMaxPcieLinkGeneration");
    int (*max_link_width)(Device, unsigned*) = optional("nvmlDeviceGetMaxPcieLinkWidth");
};

Error failed(const Nvml& nvml, int status, std::string_view call) {
    return {ErrorCode::driver_failed, fmt::format("{} says: {}", call, nvml.error_string(status)),
            std::string(call), status};
}

Result<Nvml> load() {
    const auto library = GPU_SLEEP_TRY(open_library("libnvidia-ml.so.1", "driver's management library"));
    Nvml nvml(library);
    if (!nvml.is_complete())
        return make_error(ErrorCode::no_driver, "the driver's management library is too old");
    if (const int status = nvml.init(); status != k_success) return failed(nvml, status, "nvmlInit");
    return nvml;
}

/// Returns the processes that use the GPU, with the memory of each; none if the library does not say.
std::vector<GpuProcess> processes_of(const Nvml& nvml, Device device) {
    std::vector<ProcessInfo> infos(64);
    int status = k_insufficient_size;
    for (int attempt = 0; attempt < 3 && status == k_insufficient_size; ++attempt) {
        auto count = static_cast<unsigned>(infos.size());
        status = nvml.processes(device, &count, infos.data());
        infos.resize(status == k_insufficient_size ? 2 * std::size_t{count} : count);
    }
    std::vector<GpuProcess> processes;
    if (status != k_success) return processes;
    for (const auto& info : infos) {
        GpuProcess process{static_cast<pid_t>(info.pid), {}};
        if (info.used != k_not_known) process.bytes = info.used;
        processes.push_back(process);
    }
    return processes;
}

/// Loaded the first time.
const Result<Nvml>& library() {
    static const auto& loaded = *new Result<Nvml>(load());
    return loaded;
}

/// Returns what `ask` reports about the device, or 0 if it fails or is missing.
template <class Number>
int number_of(int (*ask)(Device, Number*), Device device) {
    Number number = 0;
    return ask && ask(device, &number) == k_success ? static_cast<int>(number) : 0;
}

bool is_divided(const Nvml& nvml, Device device) {
    unsigned current = 0;
    unsigned pending = 0;
    return nvml.mig_mode && nvml.mig_mode(device, &current, &pending) == k_success && current != 0;
}

GpuSetup setup_of(const Nvml& nvml, Device device, unsigned index) {
    // nvmlComputeMode_t
    constexpr int k_exclusive_thread = 1;
    constexpr int k_prohibited = 2;
    constexpr int k_exclusive_process = 3;
    std::array<char, 96> uuid{};
    std::array<char, 96> name{};
    if (nvml.uuid(device, uuid.data(), uuid.size()) != k_success) uuid = {};
    if (nvml.name(device, name.data(), name.size()) != k_success) name = {};
    const int mode = number_of(nvml.compute_mode, device);
    return {static_cast<int>(index),
            uuid.data(),
            name.data(),
            number_of(nvml.persistence, device) != 0,
            is_divided(nvml, device),
            mode == k_exclusive_thread || mode == k_exclusive_process,
            mode == k_prohibited,
            number_of(nvml.link_generation, device),
            number_of(nvml.link_width, device),
            number_of(nvml.max_link_generation, device),
            number_of(nvml.max_link_width, device)};
}

/// Calls `use` with the library, and number and handle of each GPU that this user or container may see. Ends
/// with its first error. Errors: also no_driver, driver_failed.
template <class Use>
Result<void> for_each_device(Use&& use) {
    const auto& loaded = library();
    if (!loaded) return loaded.error();
    const auto& nvml = *loaded;
    unsigned count = 0;
    if (const int status = nvml.count(&count); status != k_success)
        return failed(nvml, status, "nvmlDeviceGetCount");
    for (unsigned index = 0; index < count; ++index) {
        Device device = nullptr;
        if (nvml.device(index, &device) == k_success) GPU_SLEEP_TRY(use(nvml, index, device));
    }
    return {};
}

/// Returns one GPU for look_at_gpus().
Result<Gpu> gpu_of(const Nvml& nvml, unsigned index, Device device) {
    std::array<char, 96> uuid{};
    std::array<char, 96> name{};
    Memory memory;
    if (const int status = nvml.memory(device, &memory); status != k_success)
        return failed(nvml, status, "nvmlDeviceGetMemoryInfo");
    if (const int status = nvml.uuid(device, uuid.data(), uuid.size()); status != k_success)
        return failed(nvml, status, "nvmlDeviceGetUUID");
    if (nvml.name(device, name.data(), name.size()) != k_success) name = {};
    return Gpu{static_cast<int>(index),
               uuid.data(),
               name.data(),
               memory.total,
               memory.free,
               number_of(nvml.persistence, device) != 0,
               processes_of(nvml, device)};
}

} // namespace

Result<Setup> look_at_setup() {
    Setup setup;
    GPU_SLEEP_TRY(for_each_device([&](const Nvml& nvml, unsigned index, Device device) -> Result<void> {
        setup.gpus.push_back(setup_of(nvml, device, index));
        return {};
    }));
    const auto& nvml = *library();
    std::array<char, 96> version{};
    if (nvml.driver_version && nvml.driver_version(version.data(), version.size()) == k_success)
        setup.driver_version = version.data();
    return setup;
}

Result<std::vector<Gpu>> look_at_gpus() {
    std::vector<Gpu> gpus;
    const auto add = [&](const Nvml& nvml, unsigned index, Device device) -> Result<void> {
        auto gpu = GPU_SLEEP_TRY(gpu_of(nvml, index, device));
        gpus.push_back(std::move(gpu));
        return {};
    };
    GPU_SLEEP_TRY(for_each_device(add));
    return gpus;
}

} // namespace gpu_sleep::driver
