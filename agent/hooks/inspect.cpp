// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding addresses in arguments and in graphs, and asking the driver for captures.

#include "hooks/inspect.hpp"

#include "base/guard.hpp"
#include "base/units.hpp"
#include "intercepted/virtual_memory.hpp"
#include "registry/registry.hpp"

#include <cstring>

namespace gpu_sleep::hooks {

namespace {

/// The driver reserves addresses in units of 2 MiB, none at 0, and a host's that heterogeneous memory shares
/// have up to 57 bits.
constexpr bool may_be_address(std::uint64_t word) noexcept {
    return word >= 2 * k_mib && word >> 57 == 0;
}

/// Adds every aligned word of `data` that may be an address.
void add_words(gate::Named& named, const void* data, std::size_t bytes) {
    for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes; at += sizeof(std::uint64_t)) {
        std::uint64_t word = 0;
        std::memcpy(&word, static_cast<const std::byte*>(data) + at, sizeof(word));
        if (may_be_address(word)) named.spans.push_back({word, word + 1});
    }
}

/// Adds one side of a copy, from `start` bytes behind its address on. Arrays do not sleep.
void add_side(gate::Named& named, CUmemorytype type, CUdeviceptr device, const void* host, std::size_t start,
              std::size_t bytes) {
    const auto base = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<CUdeviceptr>(host) : device;
    if (type != CU_MEMORYTYPE_ARRAY) add_span(named, base + start, bytes);
}

/// Adds both sides of a 3D copy, between peers or not.
template <class Copy>
void add_boxes(gate::Named& named, const Copy& copy) {
    if (copy.Depth == 0 || copy.Height == 0) return;
    const auto bytes = [&](std::size_t pitch, std::size_t height) {
        return ((copy.Depth - 1) * height + copy.Height - 1) * pitch + copy.WidthInBytes;
    };
    add_side(named, copy.srcMemoryType, copy.srcDevice, copy.srcHost,
             (copy.srcZ * copy.srcHeight + copy.srcY) * copy.srcPitch + copy.srcXInBytes,
             bytes(copy.srcPitch, copy.srcHeight));
    add_side(named, copy.dstMemoryType, copy.dstDevice, copy.dstHost,
             (copy.dstZ * copy.dstHeight + copy.dstY) * copy.dstPitch + copy.dstXInBytes,
             bytes(copy.dstPitch, copy.dstHeight));
}

/// The number of the capture that the stream belongs to, if that goes on. Breaks none.
std::optional<cuuint64_t> capture_of(CUstream stream) noexcept {
    auto state = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t number = 0;
    const auto status =
        real<Entry::cuStreamGetCaptureInfo_v2>()(stream, &state, &number, nullptr, nullptr, nullptr);
    const bool goes_on = status == CUDA_SUCCESS && state == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return goes_on ? std::optional(number) : std::nullopt;
}

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

void add_span(gate::Named& named, CUdeviceptr address, std::size_t bytes) {
    if (bytes != 0) named.spans.push_back({address, address + bytes});
}

void add_copy(gate::Named& named, const CUDA_MEMCPY2D& copy) {
    if (copy.Height == 0) return;
    add_side(named, copy.srcMemoryType, copy.srcDevice, copy.srcHost,
             copy.srcY * copy.srcPitch + copy.srcXInBytes,
             (copy.Height - 1) * copy.srcPitch + copy.WidthInBytes);
    add_side(named, copy.dstMemoryType, copy.dstDevice, copy.dstHost,
             copy.dstY * copy.dstPitch + copy.dstXInBytes,
             (copy.Height - 1) * copy.dstPitch + copy.WidthInBytes);
}

void add_copy(gate::Named& named, const CUDA_MEMCPY3D& copy) {
    add_boxes(named, copy);
}

void add_copy(gate::Named& named, const CUDA_MEMCPY3D_PEER& copy) {
    add_boxes(named, copy);
}

#ifdef GPU_SLEEP_HAS_cuMemcpy3DBatchAsync
void add_item(gate::Named& named, const CUDA_MEMCPY3D_BATCH_OP& copy) {
    const auto& extent = copy.extent;
    if (extent.width == 0 || extent.height == 0 || extent.depth == 0) return;
    for (const auto* operand : {&copy.src, &copy.dst}) {
        if (operand->type != CU_MEMCPY_OPERAND_TYPE_POINTER) {
            named.known = false; // an array's elements say how long a row of the other is
            continue;
        }
        const auto& memory = operand->op.ptr;
        const auto row = std::max(memory.rowLength, extent.width); // 0: no longer than what is copied
        const auto layer = std::max(memory.layerHeight, extent.height);
        add_span(named, memory.ptr, ((extent.depth - 1) * layer + extent.height - 1) * row + extent.width);
    }
}
#endif

void add_rows(gate::Named& named, CUdeviceptr address, std::size_t pitch, std::size_t width,
              std::size_t height) {
    if (height != 0) add_span(named, address, height > 1 ? pitch * (height - 1) + width : width);
}

void add_item(gate::Named& named, const CUstreamBatchMemOpParams& each) {
    switch (each.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32: return add_span(named, each.waitValue.address, 4);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: return add_span(named, each.waitValue.address, 8);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32: return add_span(named, each.writeValue.address, 4);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64: return add_span(named, each.writeValue.address, 8);
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
    case CU_STREAM_MEM_OP_BARRIER: return;
    default: named.known = false; // of a newer driver
    }
}

void add_item(gate::Named& named, const CUDA_LAUNCH_PARAMS& launch) {
    add_kernel(named, launch.function, launch.kernelParams, nullptr);
}

void add_item(gate::Named& named, const CUarrayMapInfo& map) {
    if (map.memHandleType == CU_MEM_HANDLE_TYPE_GENERIC)
        intercepted::add_mappings_of(map.memHandle.memHandle, named);
}

#ifdef GPU_SLEEP_HAS_cuMemBatchDecompressAsync
void add_item(gate::Named& named, const CUmemDecompressParams& operation) {
    add_span(named, operation.src, operation.srcNumBytes);
    add_span(named, operation.dst, std::max<std::size_t>(operation.dstNumBytes, 1)); // it may not be said
    add_span(named, operation.dstActBytes, sizeof *operation.dstActBytes);
}
#endif

void add_resource(gate::Named& named, const CUDA_RESOURCE_DESC& resource) {
    const auto& linear = resource.res.linear;
    const auto& rows = resource.res.pitch2D;
    if (resource.resType == CU_RESOURCE_TYPE_LINEAR) add_span(named, linear.devPtr, linear.sizeInBytes);
    if (resource.resType == CU_RESOURCE_TYPE_PITCH2D)
        add_rows(named, rows.devPtr, rows.pitchInBytes, rows.pitchInBytes, rows.height);
}

void add_kernel(gate::Named& named, CUfunction function, void** parameters, void** extra) {
    if (extra) {
        const void* buffer = nullptr;
        std::size_t bytes = 0;
        for (void** item = extra; *item != CU_LAUNCH_PARAM_END; item += 2) {
            if (*item == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = item[1];
            if (*item == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const std::size_t*>(item[1]);
        }
        if (buffer) add_words(named, buffer, bytes);
        return;
    }
    if (!parameters) return;
    bool is_kernel = false; // of a library, in place of a function
    for (std::size_t i = 0;; ++i) {
        std::size_t offset = 0;
        std::size_t bytes = 0;
        auto status = CUDA_ERROR_INVALID_HANDLE;
        if (!is_kernel) status = real<Entry::cuFuncGetParamInfo>()(function, i, &offset, &bytes);
        is_kernel |= status == CUDA_ERROR_INVALID_HANDLE;
        if (is_kernel)
            status =
                real<Entry::cuKernelGetParamInfo>()(reinterpret_cast<CUkernel>(function), i, &offset, &bytes);
        if (status == CUDA_ERROR_INVALID_VALUE) return; // behind the last one
        if (status != CUDA_SUCCESS) {
            named.known = false;
            return;
        }
        add_words(named, parameters[i], bytes);
    }
}

bool is_recorded(CUstream stream, bool per_thread) noexcept {
    std::array<CUstream, 8> own{};
    const auto count = registry::books().captures.own_streams(own);
    if (count == 0) return false;
    const auto number = capture_of(!stream && per_thread ? CU_STREAM_PER_THREAD : stream);
    for (std::size_t i = 0; number && i < count; ++i)
        if (capture_of(own[i]) == number) return true;
    return false;
}

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
        registry::Graphs::Nodes names;
        const auto nodes = nodes_of(graph);
        if (!nodes) names[nullptr].known = false;
        for (auto* const node : nodes.value_or(std::vector<CUgraphNode>())) {
            gate::Named named;
            named.known = true;
            add_node_of(named, node);
            leave_out_repeats(named);
            if (names_any(named)) names.emplace(node, std::move(named));
        }
        auto& graphs = registry::books().graphs;
        const MutexLock lock(graphs.mutex);
        graphs.named[executable] = std::move(names);
    });
}

void note_node(CUgraphExec executable, CUgraphNode node, const gate::Inspector& names) noexcept {
    note(executable, [&] {
        auto named = names.inspect();
        leave_out_repeats(named);
        auto& graphs = registry::books().graphs;
        const MutexLock lock(graphs.mutex);
        // If the making of a graph was not seen, nothing is known of it, whatever one of its nodes names.
        const auto found = graphs.named.find(executable);
        if (found != graphs.named.end()) found->second.insert_or_assign(node, std::move(named));
    });
}

void forget_graph(CUgraphExec executable) noexcept {
    auto& graphs = registry::books().graphs;
    const MutexLock lock(graphs.mutex);
    graphs.named.erase(executable);
}

void add_graph(gate::Named& named, CUgraphExec executable) {
    auto& graphs = registry::books().graphs;
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
