// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The shared count of device memory.

#include "support/simulated_driver/device_budget.hpp"

#include "support/simulated_driver/settings.hpp"
#include "support/simulated_driver/shared_memory.hpp"
#include "support/simulated_driver/shared_state.hpp"

#include <cstddef>

namespace gpu_sleep::sim {
namespace {

// All of them need SharedState::Lock.

void sweep_dead_processes() {
    auto& state = SharedState::instance();
    for (auto& process : state.processes()) {
        if (state.is_alive(process)) continue;
        for (auto& bytes : process.used) bytes = 0;
    }
}

std::uint64_t used_alone(const SharedProcess& process, int gpu) {
    std::uint64_t sum = 0;
    for (int device = 0; device < k_max_devices; ++device)
        if (process.gpus[device] == gpu) sum += process.used[device];
    return sum;
}

std::uint64_t used(int gpu) {
    std::uint64_t sum = 0;
    for (const auto& process : SharedState::instance().processes()) sum += used_alone(process, gpu);
    for (const auto& memory : shared_memory())
        if (memory.gpu == gpu) sum += memory.bytes;
    return sum;
}

bool fits(int gpu, std::uint64_t bytes) {
    const auto all = settings().memory_bytes;
    return bytes <= all && used(gpu) <= all - bytes;
}

} // namespace

std::uint64_t DeviceBudget::used_by(const SharedProcess& process, int gpu) {
    auto sum = used_alone(process, gpu);
    for (const auto& memory : shared_memory())
        if (memory.gpu == gpu && memory.importer == process.pid) sum += memory.bytes;
    return sum;
}

DeviceBudget& DeviceBudget::instance() {
    static DeviceBudget& budget = *new DeviceBudget;
    return budget;
}

bool DeviceBudget::take(int device, std::uint64_t bytes) {
    auto& own = SharedState::instance().own();
    const SharedState::Lock lock;
    if (!fits(own.gpus[device], bytes)) {
        sweep_dead_processes();
        if (!fits(own.gpus[device], bytes)) return false;
    }
    own.used[device] += bytes;
    return true;
}

void DeviceBudget::give_back(int device, std::uint64_t bytes) {
    auto& own = SharedState::instance().own();
    const SharedState::Lock lock;
    own.used[device] -= bytes;
}

std::uint64_t DeviceBudget::free_bytes(int device) {
    const auto& own = SharedState::instance().own();
    const SharedState::Lock lock;
    sweep_dead_processes();
    const auto taken = used(own.gpus[device]);
    return taken < settings().memory_bytes ? settings().memory_bytes - taken : 0;
}

void DeviceBudget::put_away(SharedProcess& process) {
    const SharedState::Lock lock;
    for (int device = 0; device < k_max_devices; ++device) {
        process.put_away[device] = process.used[device];
        process.used[device] = 0;
    }
}

bool DeviceBudget::bring_back(SharedProcess& process, std::span<const int, k_max_devices> gpus) {
    const SharedState::Lock lock;
    sweep_dead_processes();
    for (std::size_t device = 0; device < gpus.size(); ++device)
        if (!fits(gpus[device], process.put_away[device])) return false;
    for (std::size_t device = 0; device < gpus.size(); ++device) {
        process.gpus[device] = gpus[device];
        process.used[device] = process.put_away[device];
        process.put_away[device] = 0;
    }
    return true;
}

} // namespace gpu_sleep::sim
