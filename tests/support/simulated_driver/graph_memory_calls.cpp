// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The calls that make nodes of memory.

#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/entry.hpp"
#include "support/simulated_driver/graph_memory.hpp"

#include <map>
#include <memory>

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
