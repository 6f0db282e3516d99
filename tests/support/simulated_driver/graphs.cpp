// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Graphs: looking at what was captured, and replaying it.

#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/kernels.hpp"

#include <algorithm>

namespace gpu_sleep::sim {
namespace {

/// All work of a graph, in the order in which it was captured.
class GraphRun : public Work {
public:
    explicit GraphRun(const Graph& graph) {
        for (const auto& node : graph.nodes) steps_.push_back(node.work);
    }
    [[nodiscard]] CUgraphNodeType type() const noexcept override { return CU_GRAPH_NODE_TYPE_GRAPH; }
    CUresult run(const Execution& execution) const override {
        for (const auto& step : steps_) {
            if (execution.cancelled) break;
            if (const auto status = step->run(execution); status != CUDA_SUCCESS) return status;
        }
        return CUDA_SUCCESS;
    }

private:
    std::vector<std::shared_ptr<const Work>> steps_;
};

CUresult instantiate(Call& c, const Context& context, CUgraphExec* handle, CUgraph graph_handle) {
    const auto graph = c.driver.graphs.find(graph_handle);
    if (!handle || !graph) return CUDA_ERROR_INVALID_VALUE;
    const auto exec = std::make_shared<GraphExec>(GraphExec{std::make_shared<GraphRun>(*graph), &context});
    *handle = c.driver.execs.insert(exec);
    return CUDA_SUCCESS;
}

/// A call about an instantiated graph and a stream.
template <class Body>
CUresult call_with_exec(Entry entry, CUgraphExec handle, CUstream stream_handle, Body&& body) noexcept {
    return call_in_context(entry, [&](Call& c, Context& context) -> CUresult {
        const auto exec = c.driver.execs.find(handle);
        const auto stream = find_stream(c.driver, context, stream_handle);
        if (!exec) return CUDA_ERROR_INVALID_VALUE;
        return stream ? body(c, *exec, *stream) : CUDA_ERROR_INVALID_HANDLE;
    });
}

} // namespace
} // namespace gpu_sleep::sim

using namespace gpu_sleep::sim;

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
            nodes[i] = i < graph->nodes.size() ? graph->nodes[i].handle : nullptr;
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

CUresult CUDAAPI cuGraphKernelNodeGetParams(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* parameters) {
    return call(Entry::cuGraphKernelNodeGetParams, [&](Call& c) {
        const auto node = c.driver.nodes.find(handle);
        const auto* kernel = node ? dynamic_cast<const KernelLaunch*>(node->work.get()) : nullptr;
        if (!kernel || !parameters) return CUDA_ERROR_INVALID_VALUE;
        *parameters = kernel->node_parameters();
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, unsigned long long) {
    return call_in_context(Entry::cuGraphInstantiate,
                           [&](Call& c, Context& context) { return instantiate(c, context, exec, graph); });
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
    return call_in_context(Entry::cuGraphInstantiateWithParams, [&](Call& c, Context& context) {
        if (!parameters) return CUDA_ERROR_INVALID_VALUE;
        const auto status = instantiate(c, context, exec, graph);
        parameters->result_out =
            status == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
        return status;
    });
}

CUresult CUDAAPI cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
    return call_with_exec(
        Entry::cuGraphUpload, handle, stream_handle, [](Call& c, const GraphExec&, Stream& stream) {
            if (stream.capture) return break_capture(stream);
            if (const auto status = refuse_implicit_dependency(c.driver, stream); status != CUDA_SUCCESS)
                return status;
            enqueue(stream, {}, nullptr);
            return CUDA_SUCCESS;
        });
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    return call_with_exec(
        Entry::cuGraphLaunch, handle, stream_handle,
        [](Call& c, const GraphExec& exec, Stream& stream) { return submit(c, stream, exec.work); });
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle) {
    return call(Entry::cuGraphExecDestroy, [&](Call& c) {
        return c.driver.execs.remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
}

CUresult CUDAAPI cuGraphDestroy(CUgraph handle) {
    return call(Entry::cuGraphDestroy, [&](Call& c) {
        if (!c.driver.graphs.find(handle)) return CUDA_ERROR_INVALID_VALUE;
        destroy_graph(c.driver, handle);
        return CUDA_SUCCESS;
    });
}
