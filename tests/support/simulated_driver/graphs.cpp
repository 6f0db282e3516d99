// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Instantiated graphs: making, changing and launching them.

#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/graph_memory.hpp"
#include "support/simulated_driver/kernels.hpp"
#include "support/simulated_driver/stream_values.hpp"
#include "support/simulated_driver/transfer.hpp"

#include <algorithm>

namespace gpu_sleep::sim {
namespace {

/// All work of a graph, in an order that every dependency respects.
class GraphRun : public Work {
public:
    struct Step {
        CUgraphNode node; ///< of the graph that was instantiated
        std::shared_ptr<const Work> work;
    };

    GraphRun(std::vector<Step> steps, bool frees_first)
        : steps_(std::move(steps)), frees_first_(frees_first) {}
    [[nodiscard]] CUgraphNodeType type() const noexcept override { return CU_GRAPH_NODE_TYPE_GRAPH; }
    CUresult prepare(Driver& driver, bool) const override {
        for (auto step = steps_.begin(); step != steps_.end(); ++step) {
            const auto status = step->work->prepare(driver, frees_first_);
            if (status == CUDA_SUCCESS) continue;
            const auto* short_of = dynamic_cast<const AllocationNode*>(step->work.get());
            while (step != steps_.begin()) (--step)->work->take_back(driver);
            if (status == CUDA_ERROR_OUT_OF_MEMORY && short_of) keep_all_memory(short_of->memory().device);
            return status;
        }
        return CUDA_SUCCESS;
    }
    void take_back(Driver& driver) const override {
        for (const auto& step : steps_) step.work->take_back(driver);
    }
    CUresult run(const Execution& execution) const override {
        for (const auto& step : steps_) {
            if (execution.cancelled) break;
            SIM_TRY(step.work->run(execution));
        }
        return CUDA_SUCCESS;
    }
    [[nodiscard]] const std::vector<Step>& steps() const noexcept { return steps_; }
    /// The same run of other steps.
    [[nodiscard]] std::shared_ptr<const GraphRun> with(std::vector<Step> steps) const {
        return std::make_shared<GraphRun>(std::move(steps), frees_first_);
    }

private:
    std::vector<Step> steps_;
    bool frees_first_;
};

/// Whether the memory of all copies and fills is there: made from the same parameters, they are refused
/// otherwise.
bool has_its_memory(const Call& c, const Context& context, const Graph& graph) {
    std::shared_ptr<const Work> again;
    return std::all_of(graph.nodes.begin(), graph.nodes.end(), [&](const auto& node) {
        if (const auto* copy = dynamic_cast<const Copy*>(node->work.get()))
            return make_copy(c, context, copy->node_parameters(), again) == CUDA_SUCCESS;
        if (const auto* fill = dynamic_cast<const Memset*>(node->work.get()))
            return make_memset(c, context, fill->node_parameters(), again) == CUDA_SUCCESS;
        return true;
    });
}

/// Whether `graph` allocates or frees memory, and is instantiated: then it cannot be once more. Source: CUDA
/// Driver API, cuGraphAddMemAllocNode.
bool is_taken(const Driver& driver, const std::shared_ptr<Graph>& graph) {
    const bool has_memory = std::any_of(graph->nodes.begin(), graph->nodes.end(), [](const auto& node) {
        const auto type = node->work->type();
        return type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE;
    });
    if (!has_memory) return false;
    bool any = false;
    driver.execs.for_each([&](CUgraphExec, const GraphExec& exec) { any |= exec.graph.lock() == graph; });
    return any;
}

CUresult instantiate(Call& c, const Context& context, CUgraphExec* handle, CUgraph graph_handle,
                     unsigned long long flags) {
    const auto graph = c.driver.graphs.find(graph_handle);
    if (!handle || !graph || is_taken(c.driver, graph) || !has_its_memory(c, context, *graph))
        return CUDA_ERROR_INVALID_VALUE;
    std::vector<GraphRun::Step> steps;
    for (const auto& node : graph->nodes) steps.push_back({node->handle, node->work});
    const bool frees_first = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    const auto exec = std::make_shared<GraphExec>();
    exec->work = std::make_shared<GraphRun>(std::move(steps), frees_first);
    exec->graph = graph;
    exec->context = &context;
    *handle = c.driver.execs.insert(exec);
    return CUDA_SUCCESS;
}

const GraphRun& run_of(const GraphExec& exec) {
    return dynamic_cast<const GraphRun&>(*exec.work);
}

/// Gives an instantiated graph the work of another, which must have nodes of the same kinds.
bool update(GraphExec& exec, const Graph& graph) {
    auto steps = run_of(exec).steps();
    if (steps.size() != graph.nodes.size()) return false;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        if (steps[i].work->type() != graph.nodes[i]->work->type()) return false;
        steps[i].work = graph.nodes[i]->work;
    }
    exec.work = run_of(exec).with(std::move(steps));
    return true;
}

/// A call that gives one node of an instantiated graph other work of its kind.
template <class Make>
CUresult set_step(Call& c, CUgraphExec handle, CUgraphNode node, CUgraphNodeType type, const void* parameters,
                  Make&& make) {
    const auto exec = c.driver.execs.find(handle);
    if (!exec || !parameters) return CUDA_ERROR_INVALID_VALUE;
    auto steps = run_of(*exec).steps();
    const auto step = std::find_if(steps.begin(), steps.end(),
                                   [=](const auto& s) { return s.node == node && s.work->type() == type; });
    if (step == steps.end()) return CUDA_ERROR_INVALID_VALUE;
    const auto status = make(step->work);
    if (status == CUDA_SUCCESS) exec->work = run_of(*exec).with(std::move(steps));
    return status;
}

} // namespace
} // namespace gpu_sleep::sim

SIM_ENTRY(safe, 12000)
cuGraphInstantiate(Call& c, Context& context, CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
    return instantiate(c, context, exec, graph, flags);
}

SIM_ENTRY(safe, 12000)
cuGraphInstantiateWithParams(Call& c, Context& context, CUgraphExec* exec, CUgraph graph,
                             CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
    if (!parameters) return CUDA_ERROR_INVALID_VALUE;
    const auto status = instantiate(c, context, exec, graph, parameters->flags);
    parameters->result_out =
        status == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return status;
}

SIM_ENTRY(safe, 12000)
cuGraphExecUpdate(Call& c, CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo* result) {
    const auto exec = c.driver.execs.find(handle);
    const auto graph = c.driver.graphs.find(graph_handle);
    if (!exec || !graph || !result) return CUDA_ERROR_INVALID_VALUE;
    *result = {};
    if (update(*exec, *graph)) return CUDA_SUCCESS;
    result->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

SIM_ENTRY(safe, 12000)
cuGraphExecKernelNodeSetParams(Call& c, Context& context, CUgraphExec handle, CUgraphNode node,
                               const CUDA_KERNEL_NODE_PARAMS* parameters) {
    return set_step(c, handle, node, CU_GRAPH_NODE_TYPE_KERNEL, parameters,
                    [&](auto& work) { return make_launch(c.driver, context, *parameters, work); });
}

SIM_ENTRY(safe, 10020)
cuGraphExecMemcpyNodeSetParams(Call& c, Context&, CUgraphExec handle, CUgraphNode node,
                               const CUDA_MEMCPY3D* parameters, CUcontext context_handle) {
    return set_step(c, handle, node, CU_GRAPH_NODE_TYPE_MEMCPY, parameters, [&](auto& work) {
        const auto context = find_context(c.driver, context_handle);
        return context ? make_copy(c, *context, *parameters, work) : CUDA_ERROR_INVALID_VALUE;
    });
}

SIM_ENTRY(safe, 11070)
cuGraphExecBatchMemOpNodeSetParams(Call& c, Context& context, CUgraphExec handle, CUgraphNode node,
                                   const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
    return set_step(c, handle, node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, parameters, [&](auto& work) {
        return make_operations(c.driver, context, {parameters->paramArray, parameters->count}, work);
    });
}

SIM_ENTRY(queued, 10000)
cuGraphLaunch(Call& c, Context& context, CUgraphExec handle, CUstream stream_handle) {
    const auto exec = c.driver.execs.find(handle);
    const auto stream = find_stream(c.driver, context, stream_handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    return stream ? submit(c, *stream, exec->work) : CUDA_ERROR_INVALID_HANDLE;
}

SIM_ENTRY(safe, 10000) cuGraphExecDestroy(Call& c, CUgraphExec handle) {
    if (!c.driver.execs.remove(handle)) return CUDA_ERROR_INVALID_VALUE;
    forget_graph_memory(c.driver);
    return CUDA_SUCCESS;
}
