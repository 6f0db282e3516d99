// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking into graphs, and the notes of what executable ones name.

#include "hooks/graphs.hpp"

#include "base/guard.hpp"
#include "base/immortal.hpp"
#include "common/lock_order.hpp"
#include "hooks/inspect.hpp"
#include "hooks/late_symbol.hpp"
#include "intercepted/allocations.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

namespace gpu_sleep::hooks {
namespace {

/// What is asked of graphs; null in drivers that lack it. Source: CUDA Driver API, Graph Management.
struct GraphQueries {
    LateSymbol<decltype(::cuGraphGetNodes)> nodes{"cuGraphGetNodes"};
    LateSymbol<decltype(::cuGraphNodeGetType)> type{"cuGraphNodeGetType"};
    LateSymbol<decltype(::cuGraphKernelNodeGetParams_v2)> kernel{"cuGraphKernelNodeGetParams_v2"};
    LateSymbol<decltype(::cuGraphMemcpyNodeGetParams)> copy{"cuGraphMemcpyNodeGetParams"};
    LateSymbol<decltype(::cuGraphMemsetNodeGetParams)> fill{"cuGraphMemsetNodeGetParams"};
    LateSymbol<decltype(::cuGraphBatchMemOpNodeGetParams)> operations{"cuGraphBatchMemOpNodeGetParams"};
    LateSymbol<decltype(::cuGraphChildGraphNodeGetGraph)> child{"cuGraphChildGraphNodeGetGraph"};
};
constinit GraphQueries g_ask;

/// Whether the driver has the query, and answered it.
template <class Function, class... Arguments>
bool answers(LateSymbol<Function>& query, Arguments... arguments) {
    auto* const function = query.get();
    return function && function(arguments...) == CUDA_SUCCESS;
}

/// What each node names, those of its child graph among it: so one that is changed names nothing besides.
using NodeNames = std::unordered_map<CUgraphNode, gate::Named>;

struct Graphs {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(agent::lock_order::innermost);
    std::unordered_map<CUgraphExec, NodeNames> named GPU_SLEEP_GUARDED_BY(mutex);
    static Graphs& instance() {
        static Immortal<Graphs> s_graphs;
        return *s_graphs;
    }
};

/// The nodes of `graph`; nothing when the driver does not tell.
std::optional<std::vector<CUgraphNode>> nodes_of(CUgraph graph) {
    std::size_t count = 0;
    if (!answers(g_ask.nodes, graph, nullptr, &count)) return std::nullopt;
    std::vector<CUgraphNode> nodes(count);
    if (count != 0 && !answers(g_ask.nodes, graph, nodes.data(), &count)) return std::nullopt;
    return nodes;
}

/// Whether the driver told what the node is.
bool ask_type(CUgraphNode node, CUgraphNodeType& type) {
    return answers(g_ask.type, node, &type);
}

/// Whether the driver told it.
bool ask_child(CUgraphNode node, CUgraph& child) {
    return answers(g_ask.child, node, &child);
}

void add_node_of(gate::Named& named, CUgraphNode node) {
    auto type = CU_GRAPH_NODE_TYPE_EMPTY;
    bool known = ask_type(node, type);
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS_v2 kernel{};
        known = known && answers(g_ask.kernel, node, &kernel);
        if (known) add_kernel_node(named, kernel);
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
        CUDA_MEMCPY3D copy{};
        known = known && answers(g_ask.copy, node, &copy);
        if (known) add_copy(named, copy);
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS fill{};
        known = known && answers(g_ask.fill, node, &fill);
        if (known) add_fill_node(named, fill);
        break;
    }
    case CU_GRAPH_NODE_TYPE_GRAPH: {
        CUgraph child = nullptr;
        known = known && ask_child(node, child);
        if (known) add_nodes(named, child);
        break;
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
        CUDA_BATCH_MEM_OP_NODE_PARAMS operations{};
        known = known && answers(g_ask.operations, node, &operations);
        if (known) add_operations(named, operations.paramArray, operations.count);
        break;
    }
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: known = false; break;
    default: break; // names no memory of the program's
    }
    named.known &= known;
}

/// Leaves out what is no memory of the program's: most words of parameters are none.
void keep_allocations(gate::Named& named) {
    std::erase_if(named.spans,
                  [](const gate::Named::Span& span) { return !agent::intercepted::find(span.begin); });
    const auto by_begin = [](const auto& a, const auto& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    };
    const auto same = [](const auto& a, const auto& b) { return a.begin == b.begin && a.end == b.end; };
    std::sort(named.spans.begin(), named.spans.end(), by_begin);
    named.spans.erase(std::unique(named.spans.begin(), named.spans.end(), same), named.spans.end());
}

/// Runs `body`; without memory for its notes the graph is one of which nothing is known.
template <class Body>
void note(CUgraphExec executable, Body&& body) noexcept {
    const auto noted = guarded([&]() -> Result<void> {
        body();
        return {};
    });
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
        if (!ask_type(node, type)) continue;
        if (type == CU_GRAPH_NODE_TYPE_GRAPH && ask_child(node, child)) add_checked_nodes(named, child);
        if (type == CU_GRAPH_NODE_TYPE_MEMCPY || type == CU_GRAPH_NODE_TYPE_MEMSET ||
            type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
            add_node_of(named, node);
    }
}

void add_node(gate::Named& named, const CUgraphNodeParams& node) {
    switch (node.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: add_kernel_node(named, node.kernel); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: add_copy(named, node.memcpy.copyParams); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: add_fill_node(named, node.memset); break;
    case CU_GRAPH_NODE_TYPE_GRAPH: add_nodes(named, node.graph.graph); break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        add_operations(named, node.memOp.paramArray, node.memOp.count);
        break;
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
            keep_allocations(named);
            if (names_any(named)) names.emplace(node, std::move(named));
        }
        auto& graphs = Graphs::instance();
        const MutexLock lock(graphs.mutex);
        graphs.named[executable] = std::move(names);
    });
}

void note_node(CUgraphExec executable, CUgraphNode node, const gate::Inspector& names) noexcept {
    note(executable, [&] {
        auto named = names.inspect();
        keep_allocations(named);
        auto& graphs = Graphs::instance();
        const MutexLock lock(graphs.mutex);
        // Of a graph that was not seen made nothing is known, whatever one of its nodes names.
        const auto found = graphs.named.find(executable);
        if (found != graphs.named.end()) found->second.insert_or_assign(node, std::move(named));
    });
}

void forget_graph(CUgraphExec executable) noexcept {
    auto& graphs = Graphs::instance();
    const MutexLock lock(graphs.mutex);
    graphs.named.erase(executable);
}

void add_graph(gate::Named& named, CUgraphExec executable) {
    auto& graphs = Graphs::instance();
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
