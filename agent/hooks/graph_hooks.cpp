// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hooks that make and change nodes and executable graphs: a few lines each, no policy.

#include "hooks/forward.hpp"
#include "hooks/graphs.hpp"
#include "hooks/inspect.hpp"

#include <utility>

namespace gpu_sleep::hooks::own {
namespace {

/// Calls the driver's function of the same name, and notes the graph that it made.
template <Entry entry, class... Arguments>
CUresult instantiate(CUgraphExec* executable, CUgraph graph, Arguments... arguments) {
    return noted(real<entry>()(executable, graph, arguments...), [=] { note_graph(*executable, graph); });
}

template <Entry entry, class... Arguments>
CUresult update(CUgraphExec executable, CUgraph graph, Arguments... arguments) {
    return noted(real<entry>()(executable, graph, arguments...), [=] { note_graph(executable, graph); });
}

/// What the driver looks at in a node's parameters as soon as it has them.
enum class LooksAt : std::uint8_t { nothing, memory, copied_memory };

LooksAt looks_at(const CUgraphNodeParams* node) noexcept {
    if (!node) return LooksAt::nothing;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY: return LooksAt::copied_memory;
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return LooksAt::memory;
    default: return LooksAt::nothing;
    }
}

/// What `add` adds.
template <class Add>
class NodeInspector final : public gate::Inspector {
public:
    explicit NodeInspector(Add add) : add_(std::move(add)) {}
    [[nodiscard]] gate::Named inspect() const override {
        gate::Named named;
        named.known = true;
        add_(named);
        return named;
    }

private:
    Add add_;
};

auto add_if_any(const CUgraphNodeParams* node) noexcept {
    return [node](gate::Named& named) {
        if (node) add_node(named, *node);
    };
}

/// Calls the driver's function of the same name, which is given a node's parameters.
template <Entry entry, class... Arguments>
CUresult give_node(LooksAt looks, const gate::Inspector& names, Arguments... arguments) {
    const gate::Passage passage(k_touch<entry>, k_name<entry>, looks == LooksAt::nothing ? nullptr : &names);
    if (!passage.admitted()) return refused();
    const auto call = [=] { return real<entry>()(arguments...); };
    return looks == LooksAt::copied_memory ? call_reaching(names, call) : call();
}

/// The same for a node of an executable graph; `add` says what it names now.
template <Entry entry, class Add, class... Arguments>
CUresult change(LooksAt looks, Add&& add, CUgraphExec executable, CUgraphNode node, Arguments... arguments) {
    const NodeInspector names(add);
    return noted(give_node<entry>(looks, names, executable, node, arguments...),
                 [&] { note_node(executable, node, names); });
}

} // namespace

GPU_SLEEP_SHARE(cuGraphInstantiate, instantiate)
GPU_SLEEP_SHARE(cuGraphInstantiate_v2, instantiate)
GPU_SLEEP_SHARE(cuGraphInstantiateWithFlags, instantiate)
GPU_SLEEP_SHARE(cuGraphInstantiateWithParams, instantiate)
GPU_SLEEP_SHARE(cuGraphInstantiateWithParams_ptsz, instantiate)
GPU_SLEEP_SHARE(cuGraphExecUpdate, update)
GPU_SLEEP_SHARE(cuGraphExecUpdate_v2, update)

CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                        CUgraphNodeParams* parameters) {
    return give_node<Entry::cuGraphAddNode>(looks_at(parameters), NodeInspector(add_if_any(parameters)), node,
                                            graph, dependencies, count, parameters);
}
CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* edges, std::size_t count, CUgraphNodeParams* parameters) {
    return give_node<Entry::cuGraphAddNode_v2>(looks_at(parameters), NodeInspector(add_if_any(parameters)),
                                               node, graph, dependencies, edges, count, parameters);
}
CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* parameters) {
    const auto looks = looks_at(parameters);
    if (looks == LooksAt::nothing) return real<Entry::cuGraphNodeSetParams>()(node, parameters);
    return give_node<Entry::cuGraphNodeSetParams>(looks, NodeInspector(add_if_any(parameters)), node,
                                                  parameters);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* kernel) {
    return change<Entry::cuGraphExecKernelNodeSetParams>(
        LooksAt::nothing,
        [=](gate::Named& named) { add_kernel(named, kernel->func, kernel->kernelParams, kernel->extra); },
        executable, node, kernel);
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* kernel) {
    return change<Entry::cuGraphExecKernelNodeSetParams_v2>(
        LooksAt::nothing, [=](gate::Named& named) { add_kernel_node(named, *kernel); }, executable, node,
        kernel);
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D* copy,
                                        CUcontext context) {
    return change<Entry::cuGraphExecMemcpyNodeSetParams>(
        LooksAt::copied_memory, [=](gate::Named& named) { NamesNode::add(named, node, copy); }, executable,
        node, copy, context);
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext context) {
    return change<Entry::cuGraphExecMemsetNodeSetParams>(
        LooksAt::memory, [=](gate::Named& named) { NamesNode::add(named, node, fill); }, executable, node,
        fill, context);
}
CUresult cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node, CUgraphNodeParams* parameters) {
    return change<Entry::cuGraphExecNodeSetParams>(looks_at(parameters), add_if_any(parameters), executable,
                                                   node, parameters);
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec executable, CUgraphNode node, CUgraph child) {
    return change<Entry::cuGraphExecChildGraphNodeSetParams>(
        LooksAt::nothing, [=](gate::Named& named) { add_nodes(named, child); }, executable, node, child);
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* operations) {
    return change<Entry::cuGraphExecBatchMemOpNodeSetParams>(
        LooksAt::memory, [=](gate::Named& named) { NamesNode::add(named, node, operations); }, executable,
        node, operations);
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
    if (intercepts()) forget_graph(executable);
    return real<Entry::cuGraphExecDestroy>()(executable);
}

} // namespace gpu_sleep::hooks::own
