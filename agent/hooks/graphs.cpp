// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Looking into graphs, and the hooks that make and change executable ones.

#include "hooks/graphs.hpp"

#include "base/guard.hpp"
#include "base/symbols.hpp"
#include "caught/caught.hpp"
#include "hooks/inspect.hpp"

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace gpu_sleep::hooks {
namespace {

/// What is asked of graphs; null in drivers that lack it. Source: CUDA Driver API, Graph Management.
struct GraphQueries {
    decltype(&::cuGraphGetNodes) nodes = nullptr;
    decltype(&::cuGraphNodeGetType) type = nullptr;
    decltype(&::cuGraphKernelNodeGetParams_v2) kernel = nullptr;
    decltype(&::cuGraphMemcpyNodeGetParams) copy = nullptr;
    decltype(&::cuGraphMemsetNodeGetParams) fill = nullptr;
    decltype(&::cuGraphChildGraphNodeGetGraph) child = nullptr;

    static const GraphQueries& instance() {
        static const auto* const queries = new GraphQueries;
        return *queries;
    }

private:
    GraphQueries() {
        find(nodes, "cuGraphGetNodes");
        find(type, "cuGraphNodeGetType");
        find(kernel, "cuGraphKernelNodeGetParams_v2");
        find(copy, "cuGraphMemcpyNodeGetParams");
        find(fill, "cuGraphMemsetNodeGetParams");
        find(child, "cuGraphChildGraphNodeGetGraph");
    }
    template <class Function>
    static void find(Function& function, const char* symbol) {
        if (void* const driver = loaded_driver())
            function = reinterpret_cast<Function>(find_symbol(driver, symbol));
    }
};

struct Graphs {
    std::mutex mutex; ///< guards named; no call of the driver is made under it
    std::unordered_map<CUgraphExec, gate::Named> named;
    static Graphs& instance() {
        static auto* const graphs = new Graphs;
        return *graphs;
    }
};

void add_fill(gate::Named& named, const CUDA_MEMSET_NODE_PARAMS& fill) {
    const auto row = fill.width * fill.elementSize;
    add_span(named, fill.dst, fill.height > 1 ? fill.pitch * (fill.height - 1) + row : row);
}

void add_nodes(gate::Named& named, CUgraph graph);

void add_node(gate::Named& named, CUgraphNode node) {
    const auto& ask = GraphQueries::instance();
    auto type = CU_GRAPH_NODE_TYPE_EMPTY;
    bool known = ask.type && ask.type(node, &type) == CUDA_SUCCESS;
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS_v2 kernel{};
        known = known && ask.kernel && ask.kernel(node, &kernel) == CUDA_SUCCESS;
        auto* const function = kernel.func ? kernel.func : reinterpret_cast<CUfunction>(kernel.kern);
        if (known) add_kernel(named, function, kernel.kernelParams, kernel.extra);
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
        CUDA_MEMCPY3D copy{};
        known = known && ask.copy && ask.copy(node, &copy) == CUDA_SUCCESS;
        if (known) add_copy(named, copy);
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS fill{};
        known = known && ask.fill && ask.fill(node, &fill) == CUDA_SUCCESS;
        if (known) add_fill(named, fill);
        break;
    }
    case CU_GRAPH_NODE_TYPE_GRAPH: {
        CUgraph child = nullptr;
        known = known && ask.child && ask.child(node, &child) == CUDA_SUCCESS;
        if (known) add_nodes(named, child);
        break;
    }
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: known = false; break;
    default: break; // names no memory of the program's
    }
    named.known &= known;
}

void add_nodes(gate::Named& named, CUgraph graph) {
    const auto& ask = GraphQueries::instance();
    std::size_t count = 0;
    if (!ask.nodes || ask.nodes(graph, nullptr, &count) != CUDA_SUCCESS) {
        named.known = false;
        return;
    }
    std::vector<CUgraphNode> nodes(count);
    if (count != 0 && ask.nodes(graph, nodes.data(), &count) != CUDA_SUCCESS) named.known = false;
    for (auto* const node : nodes) add_node(named, node);
}

/// Leaves out what is no memory of the program's: most words of parameters are none.
void keep_allocations(gate::Named& named) {
    std::erase_if(named.spans,
                  [](const gate::Named::Span& span) { return !agent::caught::find(span.begin); });
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

template <class Add>
void add_to(CUgraphExec executable, Add&& add) noexcept {
    note(executable, [&] {
        gate::Named more;
        more.known = true;
        add(more);
        keep_allocations(more);
        auto& graphs = Graphs::instance();
        const std::lock_guard lock(graphs.mutex);
        auto& named = graphs.named[executable];
        named.known &= more.known;
        named.spans.insert(named.spans.end(), more.spans.begin(), more.spans.end());
    });
}

} // namespace

void note_graph(CUgraphExec executable, CUgraph graph) noexcept {
    note(executable, [&] {
        gate::Named named;
        named.known = true;
        add_nodes(named, graph);
        keep_allocations(named);
        auto& graphs = Graphs::instance();
        const std::lock_guard lock(graphs.mutex);
        graphs.named[executable] = std::move(named);
    });
}

void note_kernel(CUgraphExec executable, CUfunction function, void** parameters, void** extra) noexcept {
    add_to(executable, [&](gate::Named& named) { add_kernel(named, function, parameters, extra); });
}

void note_copy(CUgraphExec executable, const CUDA_MEMCPY3D& copy) noexcept {
    add_to(executable, [&](gate::Named& named) { add_copy(named, copy); });
}

void note_memset(CUgraphExec executable, const CUDA_MEMSET_NODE_PARAMS& fill) noexcept {
    add_to(executable, [&](gate::Named& named) { add_fill(named, fill); });
}

void note_unknown(CUgraphExec executable) noexcept {
    add_to(executable, [](gate::Named& named) { named.known = false; });
}

void forget_graph(CUgraphExec executable) noexcept {
    auto& graphs = Graphs::instance();
    const std::lock_guard lock(graphs.mutex);
    graphs.named.erase(executable);
}

void add_graph(gate::Named& named, CUgraphExec executable) {
    auto& graphs = Graphs::instance();
    const std::lock_guard lock(graphs.mutex);
    const auto found = graphs.named.find(executable);
    if (found == graphs.named.end()) {
        named.known = false;
        return;
    }
    named.known &= found->second.known;
    named.spans.insert(named.spans.end(), found->second.spans.begin(), found->second.spans.end());
}

namespace own {
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

/// Changes one node by the driver's function of the same name; `note` notes what it names now.
template <Entry entry, class Note, class... Arguments>
CUresult change(Note&& note_change, CUgraphExec executable, Arguments... arguments) {
    const Passage passage(Touch::takes, k_name<entry>);
    if (!passage.admitted()) return refused();
    const auto status = real<entry>()(executable, arguments...);
    if (status == CUDA_SUCCESS && catches()) note_change();
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
        [=] { note_kernel(executable, kernel->func, kernel->kernelParams, kernel->extra); }, executable, node,
        kernel);
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* kernel) {
    return change<Entry::cuGraphExecKernelNodeSetParams_v2>(
        [=] {
            auto* const function = kernel->func ? kernel->func : reinterpret_cast<CUfunction>(kernel->kern);
            note_kernel(executable, function, kernel->kernelParams, kernel->extra);
        },
        executable, node, kernel);
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D* copy,
                                        CUcontext context) {
    return change<Entry::cuGraphExecMemcpyNodeSetParams>([=] { note_copy(executable, *copy); }, executable,
                                                         node, copy, context);
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* fill, CUcontext context) {
    return change<Entry::cuGraphExecMemsetNodeSetParams>([=] { note_memset(executable, *fill); }, executable,
                                                         node, fill, context);
}
CUresult cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node, CUgraphNodeParams* parameters) {
    return change<Entry::cuGraphExecNodeSetParams>([=] { note_unknown(executable); }, executable, node,
                                                   parameters);
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec executable, CUgraphNode node, CUgraph child) {
    return change<Entry::cuGraphExecChildGraphNodeSetParams>([=] { note_unknown(executable); }, executable,
                                                             node, child);
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* operations) {
    return change<Entry::cuGraphExecBatchMemOpNodeSetParams>([=] { note_unknown(executable); }, executable,
                                                             node, operations);
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
    if (catches()) forget_graph(executable);
    return real<Entry::cuGraphExecDestroy>()(executable);
}

} // namespace own
} // namespace gpu_sleep::hooks
