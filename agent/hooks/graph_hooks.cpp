// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hooks that make and change nodes and executable graphs: a few lines each, no policy.

#include "hooks/forward.hpp"
#include "hooks/inspect.hpp"

#include <cstdint>
#include <type_traits>

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

/// The parameters of a node that the driver checks as soon as it gets them.
enum class LooksAt : std::uint8_t { nothing, memory, copied_memory };

LooksAt looks_at(CUgraph) noexcept {
    return LooksAt::nothing;
}
LooksAt looks_at(const CUDA_KERNEL_NODE_PARAMS_v1*) noexcept {
    return LooksAt::nothing;
}
LooksAt looks_at(const CUDA_KERNEL_NODE_PARAMS*) noexcept {
    return LooksAt::nothing;
}
LooksAt looks_at(const CUDA_MEMCPY3D*) noexcept {
    return LooksAt::copied_memory;
}
LooksAt looks_at(const CUDA_MEMSET_NODE_PARAMS*) noexcept {
    return LooksAt::memory;
}
LooksAt looks_at(const CUDA_BATCH_MEM_OP_NODE_PARAMS*) noexcept {
    return LooksAt::memory;
}
LooksAt looks_at(const CUgraphNodeParams* node) noexcept {
    if (!node) return LooksAt::nothing;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY: return LooksAt::copied_memory;
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return LooksAt::memory;
    default: return LooksAt::nothing;
    }
}

/// The addresses that a node names, given a pointer to its parameters, or its graph.
struct NamesOfNode {
    static void add(gate::Named& named, CUgraph child) { add_nodes(named, child); }
    template <class Parameters>
    static void add(gate::Named& named, const Parameters* parameters) {
        if (parameters) add_node(named, *parameters);
    }
};
template <class Parameters>
using NodeInspector = CallInspector<NamesOfNode, false, Parameters>;

/// Calls the driver's function of the same name, which is given a node's parameters.
template <Entry entry, class... Arguments>
CUresult give_node(LooksAt looks, const gate::Inspector& names, Arguments... arguments) {
    const gate::Passage passage(k_touch<entry>, k_name<entry>, looks == LooksAt::nothing ? nullptr : &names);
    if (!passage.admitted()) return refused();
    const auto call = [=] { return real<entry>()(arguments...); };
    return looks == LooksAt::copied_memory ? call_reaching(names, call) : call();
}

/// The same for a node of an executable graph.
template <Entry entry, class Parameters, class... Rest>
CUresult change(CUgraphExec executable, CUgraphNode node, Parameters parameters, Rest... rest) {
    const NodeInspector<Parameters> names(parameters);
    return noted(give_node<entry>(looks_at(parameters), names, executable, node, parameters, rest...),
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
    return give_node<Entry::cuGraphAddNode>(looks_at(parameters),
                                            NodeInspector<CUgraphNodeParams*>(parameters), node, graph,
                                            dependencies, count, parameters);
}
CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* edges, std::size_t count, CUgraphNodeParams* parameters) {
    return give_node<Entry::cuGraphAddNode_v2>(looks_at(parameters),
                                               NodeInspector<CUgraphNodeParams*>(parameters), node, graph,
                                               dependencies, edges, count, parameters);
}
CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* parameters) {
    const auto looks = looks_at(parameters);
    if (looks == LooksAt::nothing) return real<Entry::cuGraphNodeSetParams>()(node, parameters);
    return give_node<Entry::cuGraphNodeSetParams>(looks, NodeInspector<CUgraphNodeParams*>(parameters), node,
                                                  parameters);
}

GPU_SLEEP_SHARE(cuGraphExecKernelNodeSetParams, change)
GPU_SLEEP_SHARE(cuGraphExecKernelNodeSetParams_v2, change)
GPU_SLEEP_SHARE(cuGraphExecMemcpyNodeSetParams, change)
GPU_SLEEP_SHARE(cuGraphExecMemsetNodeSetParams, change)
GPU_SLEEP_SHARE(cuGraphExecNodeSetParams, change)
GPU_SLEEP_SHARE(cuGraphExecChildGraphNodeSetParams, change)
GPU_SLEEP_SHARE(cuGraphExecBatchMemOpNodeSetParams, change)

CUresult cuGraphExecDestroy(CUgraphExec executable) {
    if (intercepts()) forget_graph(executable);
    return real<Entry::cuGraphExecDestroy>()(executable);
}

} // namespace gpu_sleep::hooks::own
