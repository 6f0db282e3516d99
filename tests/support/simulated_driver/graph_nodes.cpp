// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Graphs as a program builds them and looks at them: nodes, and what they do.

#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/kernels.hpp"
#include "support/simulated_driver/transfer.hpp"

#include <algorithm>
#include <span>

namespace gpu_sleep::sim {
namespace {

/// A node that does nothing.
class Nothing : public Work {
public:
    [[nodiscard]] CUgraphNodeType type() const noexcept override { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUresult run(const Execution&) const override { return CUDA_SUCCESS; }
};

/// The nodes that a new one is to come after.
using Dependencies = std::span<const CUgraphNode>;

/// A call that adds a node: `make` gives it its work.
template <class Make>
CUresult call_add_node(Entry entry, CUgraphNode* node, CUgraph handle, Dependencies dependencies,
                       Make&& make) noexcept {
    return call_in_context(entry, [&](Call& c, Context& context) -> CUresult {
        const auto graph = c.driver.graphs.find(handle);
        const auto exists = [&](CUgraphNode each) { return c.driver.nodes.find(each) != nullptr; };
        if (!node || !graph || !std::all_of(dependencies.begin(), dependencies.end(), exists))
            return CUDA_ERROR_INVALID_VALUE;
        std::shared_ptr<const Work> work;
        if (const auto status = make(c, context, work); status != CUDA_SUCCESS) return status;
        *node = add_node(c.driver, *graph, std::move(work));
        return CUDA_SUCCESS;
    });
}

/// A call that asks a node that does `T` for its parameters.
template <class T, class Parameters>
CUresult call_get_parameters(Entry entry, CUgraphNode handle, Parameters* parameters) noexcept {
    return call(entry, [&](Call& c) -> CUresult {
        const auto node = c.driver.nodes.find(handle);
        const auto* work = node ? dynamic_cast<const T*>(node->work.get()) : nullptr;
        if (!work || !parameters) return CUDA_ERROR_INVALID_VALUE;
        *parameters = work->node_parameters();
        return CUDA_SUCCESS;
    });
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

using namespace gpu_sleep::sim;

CUresult CUDAAPI cuGraphCreate(CUgraph* graph, unsigned flags) {
    return call(Entry::cuGraphCreate, [&](Call& c) {
        if (!graph || flags != 0) return CUDA_ERROR_INVALID_VALUE;
        *graph = c.driver.graphs.insert(std::make_shared<Graph>());
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuGraphDestroy(CUgraph handle) {
    return call(Entry::cuGraphDestroy, [&](Call& c) {
        if (!c.driver.graphs.find(handle)) return CUDA_ERROR_INVALID_VALUE;
        destroy_graph(c.driver, handle);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                      std::size_t count, const CUDA_KERNEL_NODE_PARAMS* parameters) {
    return call_add_node(Entry::cuGraphAddKernelNode, node, graph, {dependencies, count},
                         [&](Call& c, const Context& context, auto& work) {
                             return parameters ? make_launch(c.driver, context, *parameters, work)
                                               : CUDA_ERROR_INVALID_VALUE;
                         });
}

CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                      std::size_t count, const CUDA_MEMCPY3D* parameters,
                                      CUcontext context_handle) {
    return call_add_node(Entry::cuGraphAddMemcpyNode, node, graph, {dependencies, count},
                         [&](Call& c, const Context&, auto& work) {
                             const auto context = find_context(c.driver, context_handle);
                             return parameters && context ? make_copy(c, *context, *parameters, work)
                                                          : CUDA_ERROR_INVALID_VALUE;
                         });
}

CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                      std::size_t count, const CUDA_MEMSET_NODE_PARAMS* parameters,
                                      CUcontext context_handle) {
    return call_add_node(Entry::cuGraphAddMemsetNode, node, graph, {dependencies, count},
                         [&](Call& c, const Context&, auto& work) {
                             const auto context = find_context(c.driver, context_handle);
                             return parameters && context ? make_memset(c, *context, *parameters, work)
                                                          : CUDA_ERROR_INVALID_VALUE;
                         });
}

CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                     std::size_t count) {
    return call_add_node(Entry::cuGraphAddEmptyNode, node, graph, {dependencies, count},
                         [](Call&, const Context&, auto& work) {
                             work = std::make_shared<Nothing>();
                             return CUDA_SUCCESS;
                         });
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count) {
    return call(Entry::cuGraphGetNodes, [&](Call& c) {
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
    });
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
    return call(Entry::cuGraphNodeGetType, [&](Call& c) {
        const auto node = c.driver.nodes.find(handle);
        if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
        *type = node->work->type();
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* parameters) {
    return call_get_parameters<KernelLaunch>(Entry::cuGraphKernelNodeGetParams, node, parameters);
}

CUresult CUDAAPI cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* parameters) {
    return call_get_parameters<Copy>(Entry::cuGraphMemcpyNodeGetParams, node, parameters);
}

CUresult CUDAAPI cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* parameters) {
    return call_get_parameters<Memset>(Entry::cuGraphMemsetNodeGetParams, node, parameters);
}

CUresult CUDAAPI cuGraphKernelNodeSetParams(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS* parameters) {
    return call_in_context(Entry::cuGraphKernelNodeSetParams, [&](Call& c, const Context& context) {
        const auto node = c.driver.nodes.find(handle);
        if (!node || !parameters || node->work->type() != CU_GRAPH_NODE_TYPE_KERNEL)
            return CUDA_ERROR_INVALID_VALUE;
        return make_launch(c.driver, context, *parameters, node->work);
    });
}
