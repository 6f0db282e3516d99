// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Graphs as a program builds them and looks at them: nodes, and what they do.

#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/kernels.hpp"
#include "support/simulated_driver/stream_values.hpp"
#include "support/simulated_driver/transfer.hpp"

#include <algorithm>
#include <span>

namespace gpu_sleep::sim {
namespace {

/// The nodes that a new one is to come after.
using Dependencies = std::span<const CUgraphNode>;

/// A call that adds a node: `make` gives it its work.
template <class Make>
CUresult add_node_of(Call& c, CUgraphNode* node, CUgraph handle, Dependencies dependencies,
                     const void* parameters, Make&& make) {
    const auto graph = c.driver.graphs.find(handle);
    const auto exists = [&](CUgraphNode each) { return c.driver.nodes.find(each) != nullptr; };
    if (!node || !graph || !parameters || !std::all_of(dependencies.begin(), dependencies.end(), exists))
        return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<const Work> work;
    SIM_TRY(make(work));
    *node = add_node(c.driver, *graph, std::move(work));
    return CUDA_SUCCESS;
}

/// A call that asks a node that does `T` for its parameters.
template <class T, class Parameters>
CUresult get_parameters(Call& c, CUgraphNode handle, Parameters* parameters) {
    const auto node = c.driver.nodes.find(handle);
    const auto* work = node ? dynamic_cast<const T*>(node->work.get()) : nullptr;
    if (!work || !parameters) return CUDA_ERROR_INVALID_VALUE;
    *parameters = work->node_parameters();
    return CUDA_SUCCESS;
}

/// What a node of these parameters does. Errors: INVALID_VALUE, NOT_SUPPORTED.
CUresult make_node(const Call& c, const Context& current, const CUgraphNodeParams& p,
                   std::shared_ptr<const Work>& work) {
    const auto run_in = [&](CUcontext handle) {
        return handle ? find_context(c.driver, handle).get() : &current;
    };
    switch (p.type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
        const auto* context = run_in(p.memcpy.copyCtx);
        return context ? make_copy(c, *context, p.memcpy.copyParams, work) : CUDA_ERROR_INVALID_VALUE;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        const auto& m = p.memset;
        const auto* context = run_in(m.ctx);
        return context ? make_memset(c, *context, {m.dst, m.pitch, m.value, m.elementSize, m.width, m.height},
                                     work)
                       : CUDA_ERROR_INVALID_VALUE;
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return make_operations(c.driver, current, {p.memOp.paramArray, p.memOp.count}, work);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/// A call that gives a node other work of its kind.
template <class Make>
CUresult set_parameters(Call& c, CUgraphNode handle, CUgraphNodeType type, const void* parameters,
                        Make&& make) {
    const auto node = c.driver.nodes.find(handle);
    return parameters && node && node->work->type() == type ? make(node->work) : CUDA_ERROR_INVALID_VALUE;
}

} // namespace

CUresult make_launch(const Driver& driver, const Context& context, const CUDA_KERNEL_NODE_PARAMS& parameters,
                     std::shared_ptr<const Work>& work) {
    const LaunchShape shape{{parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ},
                            {parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ},
                            parameters.sharedMemBytes};
    const auto function = parameters.func ? parameters.func : reinterpret_cast<CUfunction>(parameters.kern);
    return make_launch(driver, context, function, shape, parameters.kernelParams, parameters.extra, work);
}

} // namespace gpu_sleep::sim

SIM_ENTRY(safe, 10000) cuGraphCreate(Call& c, CUgraph* graph, unsigned flags) {
    if (!graph || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *graph = c.driver.graphs.insert(std::make_shared<Graph>());
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 10000) cuGraphDestroy(Call& c, CUgraph handle) {
    if (!c.driver.graphs.find(handle)) return CUDA_ERROR_INVALID_VALUE;
    destroy_graph(c.driver, handle);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 12000)
cuGraphAddKernelNode(Call& c, Context& context, CUgraphNode* node, CUgraph graph,
                     const CUgraphNode* dependencies, std::size_t count,
                     const CUDA_KERNEL_NODE_PARAMS* parameters) {
    return add_node_of(c, node, graph, {dependencies, count}, parameters,
                       [&](auto& work) { return make_launch(c.driver, context, *parameters, work); });
}

SIM_ENTRY(safe, 10000)
cuGraphAddMemcpyNode(Call& c, Context&, CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                     std::size_t count, const CUDA_MEMCPY3D* parameters, CUcontext context_handle) {
    return add_node_of(c, node, graph, {dependencies, count}, parameters, [&](auto& work) {
        const auto context = find_context(c.driver, context_handle);
        return context ? make_copy(c, *context, *parameters, work) : CUDA_ERROR_INVALID_VALUE;
    });
}

SIM_ENTRY(safe, 10000)
cuGraphAddMemsetNode(Call& c, Context&, CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                     std::size_t count, const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext context_handle) {
    return add_node_of(c, node, graph, {dependencies, count}, parameters, [&](auto& work) {
        const auto context = find_context(c.driver, context_handle);
        return context ? make_memset(c, *context, *parameters, work) : CUDA_ERROR_INVALID_VALUE;
    });
}

SIM_ENTRY(safe, 10000) cuGraphGetNodes(Call& c, CUgraph handle, CUgraphNode* nodes, std::size_t* count) {
    const auto graph = c.driver.graphs.find(handle);
    if (!graph || !count) return CUDA_ERROR_INVALID_VALUE;
    if (!nodes) {
        *count = graph->nodes.size();
        return CUDA_SUCCESS;
    }
    // As documented: places beyond the last node are cleared, and the count says how many there are.
    for (std::size_t i = 0; i < *count; ++i)
        nodes[i] = i < graph->nodes.size() ? graph->nodes[i]->handle : nullptr;
    *count = std::min(*count, graph->nodes.size());
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 10000) cuGraphNodeGetType(Call& c, CUgraphNode handle, CUgraphNodeType* type) {
    const auto node = c.driver.nodes.find(handle);
    if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
    *type = node->work->type();
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 12000)
cuGraphKernelNodeGetParams(Call& c, CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* parameters) {
    return get_parameters<KernelLaunch>(c, node, parameters);
}

SIM_ENTRY(safe, 10000) cuGraphMemcpyNodeGetParams(Call& c, CUgraphNode node, CUDA_MEMCPY3D* parameters) {
    return get_parameters<Copy>(c, node, parameters);
}

SIM_ENTRY(safe, 10000)
cuGraphMemsetNodeGetParams(Call& c, CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* parameters) {
    return get_parameters<Memset>(c, node, parameters);
}

SIM_ENTRY(safe, 12000)
cuGraphKernelNodeSetParams(Call& c, Context& context, CUgraphNode handle,
                           const CUDA_KERNEL_NODE_PARAMS* parameters) {
    return set_parameters(c, handle, CU_GRAPH_NODE_TYPE_KERNEL, parameters,
                          [&](auto& work) { return make_launch(c.driver, context, *parameters, work); });
}

SIM_ENTRY(safe, 10000)
cuGraphMemcpyNodeSetParams(Call& c, Context& context, CUgraphNode handle, const CUDA_MEMCPY3D* parameters) {
    return set_parameters(c, handle, CU_GRAPH_NODE_TYPE_MEMCPY, parameters,
                          [&](auto& work) { return make_copy(c, context, *parameters, work); });
}

SIM_ENTRY(safe, 12020)
cuGraphNodeSetParams(Call& c, Context& context, CUgraphNode handle, CUgraphNodeParams* parameters) {
    if (!parameters) return CUDA_ERROR_INVALID_VALUE;
    return set_parameters(c, handle, parameters->type, parameters,
                          [&](auto& work) { return make_node(c, context, *parameters, work); });
}

SIM_ENTRY(safe, 13000)
cuGraphAddNode(Call& c, Context& context, CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
               const CUgraphEdgeData*, std::size_t count, CUgraphNodeParams* parameters) {
    return add_node_of(c, node, graph, {dependencies, count}, parameters,
                       [&](auto& work) { return make_node(c, context, *parameters, work); });
}

SIM_ENTRY(safe, 11070)
cuGraphAddBatchMemOpNode(Call& c, Context&, CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                         std::size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
    return add_node_of(c, node, graph, {dependencies, count}, parameters, [&](auto& work) {
        const auto context = find_context(c.driver, parameters->ctx);
        return context
                   ? make_operations(c.driver, *context, {parameters->paramArray, parameters->count}, work)
                   : CUDA_ERROR_INVALID_VALUE;
    });
}

SIM_ENTRY(safe, 11070)
cuGraphBatchMemOpNodeGetParams(Call& c, CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
    return get_parameters<ValueOperations>(c, node, parameters);
}
