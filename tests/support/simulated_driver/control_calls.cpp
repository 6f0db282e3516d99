// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The control functions of control.h.

#include "support/simulated_driver/control.h"

#include "support/simulated_driver/device_budget.hpp"
#include "support/simulated_driver/driver.hpp"
#include "support/simulated_driver/faults.hpp"
#include "support/simulated_driver/memory_pools.hpp"
#include "support/simulated_driver/shared_state.hpp"

#include <mutex>

using namespace gpu_sleep::sim;

void sim_fail(const char* name, std::uint64_t nth, int status, unsigned flags) {
    Faults::instance().fail(name, nth, static_cast<CUresult>(status), flags);
}

void sim_delay(const char* name, std::uint64_t microseconds) {
    Faults::instance().delay(name, std::chrono::microseconds(microseconds));
}

void sim_corrupt_copy(const char* name, std::uint64_t nth) {
    Faults::instance().corrupt_copy(name, nth);
}

void sim_flip_bit(std::uint64_t address, std::uint64_t offset, unsigned bit) {
    *reinterpret_cast<unsigned char*>(address + offset) ^= static_cast<unsigned char>(1U << (bit % 8));
}

void sim_clear(void) {
    Faults::instance().clear();
}

std::uint64_t sim_calls(const char* name) {
    return Counts::instance().calls_of(name);
}

std::uint64_t sim_nanoseconds_inside(void) {
    return Counts::instance().nanoseconds_inside;
}

sim_faults sim_fault_counts(void) {
    return Counts::instance().faults();
}

const char* sim_last_failed(void) {
    return Counts::instance().last_failed;
}

void sim_reset_counts(void) {
    Counts::instance().reset();
}

sim_live sim_live_objects(void) {
    auto& driver = Driver::instance();
    const std::lock_guard lock(driver.mutex);
    const auto& totals = driver.space.totals();
    sim_live live{};
    live.handles = driver.allocations.size();
    live.physical_bytes = driver.host_pool.taken();
    for (const auto& pool : driver.pools) live.physical_bytes += pool->taken();
    live.mappings = totals.mappings;
    live.mapped_bytes = totals.mapped_bytes;
    live.reservations = totals.reservations;
    live.plain_allocations = driver.plain.size();
    live.plain_bytes = driver.plain_bytes;
    driver.memory_pools.for_each(
        [&](CUmemoryPool, const MemoryPool& pool) { live.pool_reserved_bytes += pool.reserved; });
    for (const auto& [begin, block] : driver.blocks) {
        if (is_freed(block)) continue;
        ++live.pool_allocations;
        live.pool_bytes += block.bytes;
    }
    for (const auto& [begin, memory] : driver.graph_memory) live.graph_allocations += memory->live > 0;
    live.memory_pools = driver.memory_pools.size() - driver.default_pools.size();
    live.host_registrations = driver.host.count();
    live.host_bytes = driver.host.bytes();
    live.contexts = driver.contexts.size();
    live.streams = driver.streams.size();
    live.events = driver.events.size();
    live.modules = driver.modules.size() + driver.libraries.size();
    live.graphs = driver.graphs.size();
    return live;
}

std::uint64_t sim_free_bytes(int device) {
    if (device < 0 || device >= Driver::instance().device_count()) return 0;
    return DeviceBudget::instance().free_bytes(device);
}

std::size_t sim_processes(sim_process* found, std::size_t most, int device) {
    if (device < 0 || device >= Driver::instance().device_count()) return 0;
    auto& state = SharedState::instance();
    const SharedState::Lock lock;
    std::size_t count = 0;
    for (const auto& process : state.processes()) {
        if (!state.is_alive(process)) continue;
        const auto used = DeviceBudget::used_by(process, device);
        if (used == 0) continue;
        if (found && count == most) break;
        if (found) found[count] = {process.pid, used};
        ++count;
    }
    return count;
}
