// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Graphs that allocate and free memory.

#include "support/simulated_driver/graph_memory.hpp"

#include "base/units.hpp"
#include "support/simulated_driver/device_budget.hpp"
#include "support/simulated_driver/memory_pools.hpp"
#include "support/simulated_driver/plain_memory.hpp"
#include "support/simulated_driver/tries.hpp"

namespace gpu_sleep::sim {
namespace {

CUresult back(Driver& driver, const GraphMemory& memory) {
    SIM_FIND(physical, Physical::create(driver.pool(memory.device), memory.reserved),
             CUDA_ERROR_OUT_OF_MEMORY);
    auto status = driver.space.map(memory.begin, physical, Origin::pool);
    for (auto it = memory.access.begin(); it != memory.access.end() && status == CUDA_SUCCESS; ++it)
        status =
            driver.space.set_access(memory.begin, memory.reserved, std::uint32_t{1} << it->first, it->second);
    if (status != CUDA_SUCCESS) driver.space.unmap(memory.begin, memory.reserved);
    return status;
}

} // namespace

CUresult AllocationNode::prepare(Driver& driver, bool frees_first) const {
    if (memory_->live == 0) {
        SIM_TRY(back(driver, *memory_));
        memory_->live = 1;
        return CUDA_SUCCESS;
    }
    if (memory_->freed_in_graph) {
        ++memory_->live;
        return CUDA_SUCCESS;
    }
    return frees_first ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void AllocationNode::take_back(Driver& driver) const {
    release(driver, *memory_);
}

CUresult Free::run(const Execution&) const {
    auto& driver = Driver::instance();
    const std::lock_guard lock(driver.mutex);
    if (memory_)
        release(driver, *memory_);
    else
        free_plain_memory(driver, address_);
    return CUDA_SUCCESS;
}

CUresult make_allocation_node(Driver& driver, const Context& context, CUgraph graph, int device,
                              const std::map<int, CUmemAccess_flags>& access, std::uint64_t bytes,
                              std::shared_ptr<const AllocationNode>& node) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    const auto memory = std::make_shared<GraphMemory>();
    memory->bytes = bytes;
    memory->reserved = round_up(bytes, k_page);
    memory->device = device;
    memory->context = &context;
    memory->access = access;
    memory->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    memory->graph = graph;
    SIM_TRY(driver.space.reserve(memory->reserved, k_page, 0, Origin::pool, memory->begin));
    driver.graph_memory[memory->begin] = memory;
    node = std::make_shared<AllocationNode>(memory);
    return CUDA_SUCCESS;
}

std::shared_ptr<const Free> make_free_node(Driver& driver, CUgraph graph, CUdeviceptr address) {
    const auto found = driver.graph_memory.find(address);
    if (found == driver.graph_memory.end()) return nullptr;
    const auto& memory = found->second;
    if (memory->graph == graph && memory->freed_in_graph) return nullptr;
    if (memory->graph == graph) memory->freed_in_graph = true;
    return std::make_shared<Free>(address, memory);
}

void release(Driver& driver, GraphMemory& memory) {
    if (memory.live == 0 || --memory.live > 0) return;
    driver.space.unmap(memory.begin, memory.reserved);
}

void forget_graph_memory(Driver& driver) {
    std::erase_if(driver.graph_memory, [&](const auto& entry) {
        const auto& memory = entry.second;
        if (memory.use_count() > 1 || memory->live > 0) return false;
        driver.space.free_reservation(memory->begin, memory->reserved);
        return true;
    });
}

void keep_all_memory(int device) {
    auto& budget = DeviceBudget::instance();
    static_cast<void>(budget.take(device, budget.free_bytes(device)));
}

void free_graph_memory_of(Driver& driver, const Context& context) {
    for (const auto& [begin, memory] : driver.graph_memory) {
        if (memory->context != &context || memory->live == 0) continue;
        memory->live = 1;
        release(driver, *memory);
    }
    forget_graph_memory(driver);
}

} // namespace gpu_sleep::sim
