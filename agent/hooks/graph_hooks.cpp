// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The hooks that make and change executable graphs: a few lines each, no policy.

#include "hooks/graphs.hpp"
#include "hooks/inspect.hpp"

namespace gpu_sleep::hooks::own {
namespace {

using gate::Passage;
using gate::Touch;

/// Calls the driver's function of the same name, and notes the graph that it made.
template <Entry entry, class... Arguments>
CUresult instantiate(CUgraphExec* executable, CUgraph graph, Arguments... arguments) {
    const Passage passage(Touch::takes, k_name<entry>);
    if (!passage.admitted()) return refused();
    const auto status = real<entry>()(executable, graph, arguments...);
    if (status == CUDA_SUCCESS && catches()) note_graph(*executable, graph);
    return status;
}

template <Entry entry, class... Arguments>
CUresult update(CUgraphExec executable, CUgraph graph, Arguments... arguments) {
    const Passage passage(Touch::takes, k_name<entry>);
    if (!passage.admitted()) return refused();
    const auto status = real<entry>()(executable, graph, arguments...);
    if (status == CUDA_SUCCESS && catches()) note_graph(executable, graph);
    return status;
}

/// Changes one node by the driver's function of the same name; `add` says what it names now.
template <Entry entry, class Add, class... Arguments>
CUresult change(Add&& add, CUgraphExec executable, CUgraphNode node, Arguments... arguments) {
    const Passage passage(Touch::takes, k_name<entry>);
    if (!passage.admitted()) return refused();
    const auto status = real<entry>()(executable, node, arguments...);
    if (status == CUDA_SUCCESS && catches()) note_node(executable, node, add);
    return status;
}

} // namespace

CUresult cuGraphInstantiate(CUgraphExec* executable, CUgraph graph, CUgraphNode* error_node, char* log,
                            std::size_t log_bytes) {
    return instantiate<Entry::cuGraphInstantiate>(executable, graph, error_node, log, log_bytes);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* executable, CUgraph graph, CUgraphNode* error_node, char* log,
                               std::size_t log_bytes) {
    return instantiate<Entry::cuGraphInstantiate_v2>(executable, graph, error_node, log, log_bytes);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
    return instantiate<Entry::cuGraphInstantiateWithFlags>(executable, graph, flags);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
    return instantiate<Entry::cuGraphInstantiateWithParams>(executable, graph, parameters);
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* executable, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
    return instantiate<Entry::cuGraphInstantiateWithParams_ptsz>(executable, graph, parameters);
}

CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphNode* error_node,
                           CUgraphExecUpdateResult* result) {
    return update<Entry::cuGraphExecUpdate>(executable, graph, error_node, result);
}
CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph, CUgraphExecUpdateResultInfo* result) {
    return update<Entry::cuGraphExecUpdate_v2>(executable, graph, result);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* kernel) {
    return change<Entry::cuGraphExecKernelNodeSetParams>(
        [=](gate::Named& named) { add_kernel(named, kernel->func, kernel->kernelParams, kernel->extra); },
        executable, node, kernel);
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* kernel) {
    return change<Entry::cuGraphExecKernelNodeSetParams_v2>(
        [=](gate::Named& named) { add_kernel_node(named, *kernel); }, executable, node, kernel);
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D* copy,
                                        CUcontext context) {
    return change<Entry::cuGraphExecMemcpyNodeSetParams>([=](gate::Named& named) { add_copy(named, *copy); },
                                                         executable, node, copy, context);
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext context) {
    return change<Entry::cuGraphExecMemsetNodeSetParams>(
        [=](gate::Named& named) { add_fill_node(named, *fill); }, executable, node, fill, context);
}
CUresult cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node, CUgraphNodeParams* parameters) {
    return change<Entry::cuGraphExecNodeSetParams>([=](gate::Named& named) { add_node(named, *parameters); },
                                                   executable, node, parameters);
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec executable, CUgraphNode node, CUgraph child) {
    return change<Entry::cuGraphExecChildGraphNodeSetParams>(
        [=](gate::Named& named) { add_nodes(named, child); }, executable, node, child);
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* operations) {
    return change<Entry::cuGraphExecBatchMemOpNodeSetParams>(
        [=](gate::Named& named) { add_operations(named, operations->paramArray, operations->count); },
        executable, node, operations);
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
    if (catches()) forget_graph(executable);
    return real<Entry::cuGraphExecDestroy>()(executable);
}

} // namespace gpu_sleep::hooks::own
