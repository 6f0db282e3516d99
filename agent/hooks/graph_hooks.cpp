// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hooks that make and change nodes and executable graphs: a few lines each, no policy.

#include "hooks/forward.hpp"
#include "hooks/inspect.hpp"

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

template <class Parameters>
LooksAt looks_at(Parameters parameters) noexcept {
    if constexpr (std::is_same_v<Parameters, CUgraphNodeParams*>) {
        switch (parameters ? parameters->type : CU_GRAPH_NODE_TYPE_EMPTY) {
        case CU_GRAPH_NODE_TYPE_MEMCPY: return LooksAt::copied_memory;
        case CU_GRAPH_NODE_TYPE_MEMSET:
        case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return LooksAt::memory;
        default: return LooksAt::nothing;
        }
    } else if constexpr (std::is_same_v<Parameters, CUgraph> || requires { parameters->kernelParams; }) {
        return LooksAt::nothing;
    } else {
        return std::is_same_v<Parameters, const CUDA_MEMCPY3D*> ? LooksAt::copied_memory : LooksAt::memory;
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

GPU_SLEEP_SHARE(instantiate, instantiate)
GPU_SLEEP_SHARE(update, update)

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

GPU_SLEEP_SHARE(change, change)

CUresult cuGraphExecDestroy(CUgraphExec executable) {
    if (intercepts()) forget_graph(executable);
    return real<Entry::cuGraphExecDestroy>()(executable);
}

} // namespace gpu_sleep::hooks::own
