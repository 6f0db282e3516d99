// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking into graphs, and the notes of what executable ones name.

#include "hooks/graphs.hpp"

#include "base/guard.hpp"
#include "base/memory.hpp"
#include "common/lock_order.hpp"
#include "hooks/inspect.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gpu_sleep::hooks {
namespace {

/// What each node names, those of its child graph among it: so one that is changed names nothing besides.
using NodeNames = std::unordered_map<CUgraphNode, gate::Named>;

struct Graphs {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(agent::lock_order::innermost);
    std::unordered_map<CUgraphExec, NodeNames> named GPU_SLEEP_GUARDED_BY(mutex);
};

/// The nodes of `graph`; nothing when the driver does not tell.
std::optional<std::vector<CUgraphNode>> nodes_of(CUgraph graph) {
    const auto ask = real<Entry::cuGraphGetNodes>();
    std::size_t count = 0;
    if (ask(graph, nullptr, &count) != CUDA_SUCCESS) return std::nullopt;
    std::vector<CUgraphNode> nodes(count);
    if (count != 0 && ask(graph, nodes.data(), &count) != CUDA_SUCCESS) return std::nullopt;
    return nodes;
}

/// Adds what the driver tells of the node, if it does; else nothing is known.
template <Entry entry, class Told>
void add_told(gate::Named& named, CUgraphNode node) {
    Told told{};
    if (real<entry>()(node, &told) == CUDA_SUCCESS)
        add_node(named, told);
    else
        named.known = false;
}

void add_node_of(gate::Named& named, CUgraphNode node) {
    auto type = CU_GRAPH_NODE_TYPE_EMPTY;
    named.known &= real<Entry::cuGraphNodeGetType>()(node, &type) == CUDA_SUCCESS;
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return add_told<Entry::cuGraphKernelNodeGetParams_v2, CUDA_KERNEL_NODE_PARAMS_v2>(named, node);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return add_told<Entry::cuGraphMemcpyNodeGetParams, CUDA_MEMCPY3D>(named, node);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return add_told<Entry::cuGraphMemsetNodeGetParams, CUDA_MEMSET_NODE_PARAMS>(named, node);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return add_told<Entry::cuGraphChildGraphNodeGetGraph, CUgraph>(named, node);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return add_told<Entry::cuGraphBatchMemOpNodeGetParams, CUDA_BATCH_MEM_OP_NODE_PARAMS>(named, node);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: named.known = false; break;
    default: break; // names no memory of the program's
    }
}

/// A node names much twice, and each launch at a closed gate looks at all of it.
void leave_out_repeats(gate::Named& named) {
    const auto by_begin = [](const auto& a, const auto& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    };
    std::sort(named.spans.begin(), named.spans.end(), by_begin);
    named.spans.erase(std::unique(named.spans.begin(), named.spans.end()), named.spans.end());
}

/// Runs `body`; without memory for its notes the graph is one of which nothing is known.
template <class Body>
void note(CUgraphExec executable, Body&& body) noexcept {
    const auto noted = guarded([&] { body(); });
    if (!noted) forget_graph(executable);
}

bool names_any(const gate::Named& named) {
    return !named.known || !named.spans.empty();
}

} // namespace

void add_nodes(gate::Named& named, CUgraph graph) {
    const auto nodes = nodes_of(graph);
    named.known &= nodes.has_value();
    if (!nodes) return;
    for (auto* const node : *nodes) add_node_of(named, node);
}

void add_checked_nodes(gate::Named& named, CUgraph graph) {
    const auto nodes = nodes_of(graph);
    for (auto* const node : nodes.value_or(std::vector<CUgraphNode>())) {
        auto type = CU_GRAPH_NODE_TYPE_EMPTY;
        CUgraph child = nullptr;
        if (real<Entry::cuGraphNodeGetType>()(node, &type) != CUDA_SUCCESS) continue;
        if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
            real<Entry::cuGraphChildGraphNodeGetGraph>()(node, &child) == CUDA_SUCCESS)
            add_checked_nodes(named, child);
        if (type == CU_GRAPH_NODE_TYPE_MEMCPY || type == CU_GRAPH_NODE_TYPE_MEMSET ||
            type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
            add_node_of(named, node);
    }
}

void add_node(gate::Named& named, const CUgraphNodeParams& node) {
    switch (node.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return add_node(named, node.kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return add_node(named, node.memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: return add_node(named, node.memset);
    case CU_GRAPH_NODE_TYPE_GRAPH: return add_node(named, node.graph.graph);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return add_node(named, node.memOp);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: named.known = false; break;
    default: break; // names no memory of the program's
    }
}

void note_graph(CUgraphExec executable, CUgraph graph) noexcept {
    note(executable, [&] {
        NodeNames names;
        const auto nodes = nodes_of(graph);
        if (!nodes) names[nullptr].known = false;
        for (auto* const node : nodes.value_or(std::vector<CUgraphNode>())) {
            gate::Named named;
            named.known = true;
            add_node_of(named, node);
            leave_out_repeats(named);
            if (names_any(named)) names.emplace(node, std::move(named));
        }
        auto& graphs = immortal<Graphs>();
        const MutexLock lock(graphs.mutex);
        graphs.named[executable] = std::move(names);
    });
}

void note_node(CUgraphExec executable, CUgraphNode node, const gate::Inspector& names) noexcept {
    note(executable, [&] {
        auto named = names.inspect();
        leave_out_repeats(named);
        auto& graphs = immortal<Graphs>();
        const MutexLock lock(graphs.mutex);
        // Of a graph that was not seen made nothing is known, whatever one of its nodes names.
        const auto found = graphs.named.find(executable);
        if (found != graphs.named.end()) found->second.insert_or_assign(node, std::move(named));
    });
}

void forget_graph(CUgraphExec executable) noexcept {
    auto& graphs = immortal<Graphs>();
    const MutexLock lock(graphs.mutex);
    graphs.named.erase(executable);
}

void add_graph(gate::Named& named, CUgraphExec executable) {
    auto& graphs = immortal<Graphs>();
    const MutexLock lock(graphs.mutex);
    const auto found = graphs.named.find(executable);
    if (found == graphs.named.end()) {
        named.known = false;
        return;
    }
    for (const auto& [node, names] : found->second) {
        named.known &= names.known;
        named.spans.insert(named.spans.end(), names.spans.begin(), names.spans.end());
    }
}

} // namespace gpu_sleep::hooks
