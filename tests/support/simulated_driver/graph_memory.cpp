// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Graphs that allocate and free memory.

#include "support/simulated_driver/graph_memory.hpp"

#include "base/units.hpp"
#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/device_budget.hpp"
#include "support/simulated_driver/memory_pools.hpp"
#include "support/simulated_driver/plain_memory.hpp"

namespace gpu_sleep::sim {
namespace {

CUresult back(Driver& driver, const GraphMemory& memory) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, memory.device};
    const auto physical = Physical::create(driver.pool(memory.device), memory.reserved, properties);
    if (!physical) return CUDA_ERROR_OUT_OF_MEMORY;
    auto status = driver.space.map(memory.begin, physical, Origin::pool);
    for (auto it = memory.access.begin(); it != memory.access.end() && status == CUDA_SUCCESS; ++it)
        status =
            driver.space.set_access(memory.begin, memory.reserved, std::uint32_t{1} << it->first, it->second);
    if (status != CUDA_SUCCESS) driver.space.unmap(memory.begin, memory.reserved);
    return status;
}

/// A call that asks a node of kind `T` for its parameters.
template <class T, class Body>
CUresult call_with_node(Entry entry, CUgraphNode handle, Body&& body) noexcept {
    return call(entry, [&](Call& c) -> CUresult {
        const auto node = c.driver.nodes.find(handle);
        const auto* work = node ? dynamic_cast<const T*>(node->work.get()) : nullptr;
        return work ? body(*work) : CUDA_ERROR_INVALID_VALUE;
    });
}

} // namespace

CUresult AllocationNode::prepare(Driver& driver, bool frees_first) const {
    if (memory_->live == 0) {
        if (const auto status = back(driver, *memory_); status != CUDA_SUCCESS) return status;
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
    const auto status = driver.space.reserve(memory->reserved, k_page, 0, Origin::pool, memory->begin);
    if (status != CUDA_SUCCESS) return status;
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

using namespace gpu_sleep::sim;

SIM_ENTRY(safe, 11040)
cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph handle, const CUgraphNode*, std::size_t,
                       CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
    return call_in_context(Entry::cuGraphAddMemAllocNode, [&](Call& c, Context& context) {
        const auto graph = c.driver.graphs.find(handle);
        if (!node || !graph || !parameters) return CUDA_ERROR_INVALID_VALUE;
        const auto& location = parameters->poolProps.location;
        if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id < 0 ||
            location.id >= c.driver.device_count())
            return CUDA_ERROR_INVALID_VALUE;
        std::map<int, CUmemAccess_flags> access;
        for (std::size_t i = 0; i < parameters->accessDescCount; ++i)
            access[parameters->accessDescs[i].location.id] = parameters->accessDescs[i].flags;
        std::shared_ptr<const AllocationNode> work;
        const auto status =
            make_allocation_node(c.driver, context, handle, location.id, access, parameters->bytesize, work);
        if (status != CUDA_SUCCESS) return status;
        parameters->dptr = work->memory().begin;
        *node = add_node(c.driver, *graph, work);
        return CUDA_SUCCESS;
    });
}

SIM_ENTRY(safe, 11040)
cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph handle, const CUgraphNode*, std::size_t,
                      CUdeviceptr address) {
    return call(Entry::cuGraphAddMemFreeNode, [&](Call& c) {
        const auto graph = c.driver.graphs.find(handle);
        if (!node || !graph) return CUDA_ERROR_INVALID_VALUE;
        auto work = make_free_node(c.driver, handle, address);
        if (!work) return CUDA_ERROR_INVALID_VALUE;
        *node = add_node(c.driver, *graph, std::move(work));
        return CUDA_SUCCESS;
    });
}

SIM_ENTRY(safe, 11040)
cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
    return call_with_node<AllocationNode>(
        Entry::cuGraphMemAllocNodeGetParams, node, [&](const AllocationNode& work) {
            if (!parameters) return CUDA_ERROR_INVALID_VALUE;
            *parameters = {};
            parameters->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
            parameters->poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, work.memory().device};
            parameters->bytesize = work.memory().bytes;
            parameters->dptr = work.memory().begin;
            return CUDA_SUCCESS;
        });
}

SIM_ENTRY(safe, 11040) cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* address) {
    return call_with_node<Free>(Entry::cuGraphMemFreeNodeGetParams, node, [&](const Free& work) {
        if (!address) return CUDA_ERROR_INVALID_VALUE;
        *address = work.address();
        return CUDA_SUCCESS;
    });
}

SIM_ENTRY(safe, 11040) cuDeviceGraphMemTrim(CUdevice device) {
    return call(Entry::cuDeviceGraphMemTrim, [&](Call& c) {
        // Nothing is kept between launches, but what a failed one took; that stays.
        return device >= 0 && device < c.driver.device_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    });
}
