// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Finding the addresses in what a call is given, or what a graph's nodes are, and whether a call only adds to
// a graph that is being captured. What executable graphs name is noted when they are instantiated and
// changed, since the driver does not tell it of them later. Which call names what is in named_addresses.hpp.

#pragma once

#include "hooks/driver_table.hpp"

namespace gpu_sleep::hooks {

/// Adds the span that a pointer argument and a size make.
void add_span(gate::Named& named, CUdeviceptr address, std::size_t bytes);
/// The same for what the driver takes as an address of either side.
inline void add_span(gate::Named& named, const void* address, std::size_t bytes) {
    add_span(named, reinterpret_cast<CUdeviceptr>(address), bytes);
}
/// Adds what a 2D or 3D copy reads and writes.
void add_copy(gate::Named& named, const CUDA_MEMCPY2D& copy);
void add_copy(gate::Named& named, const CUDA_MEMCPY3D& copy);
void add_copy(gate::Named& named, const CUDA_MEMCPY3D_PEER& copy);
/// Adds what `height` rows of `width` bytes take.
void add_rows(gate::Named& named, CUdeviceptr address, std::size_t pitch, std::size_t width,
              std::size_t height);
/// Adds what one item of a list names: the number in memory that a stream sets or waits for, a launch, a part
/// of a sparse array, ...
void add_item(gate::Named& named, const CUstreamBatchMemOpParams& operation);
void add_item(gate::Named& named, const CUDA_LAUNCH_PARAMS& launch);
void add_item(gate::Named& named, const CUarrayMapInfo& map);
// The types of entry points that an older cuda.h lacks.
#ifdef GPU_SLEEP_HAS_cuMemcpy3DBatchAsync
void add_item(gate::Named& named, const CUDA_MEMCPY3D_BATCH_OP& copy);
#endif
#ifdef GPU_SLEEP_HAS_cuMemBatchDecompressAsync
void add_item(gate::Named& named, const CUmemDecompressParams& operation);
#endif
template <class Item>
void add_each(gate::Named& named, const Item* items, std::size_t count) {
    for (std::size_t i = 0; items && i < count; ++i) add_item(named, items[i]);
}
/// Adds the memory that a texture is made of.
void add_resource(gate::Named& named, const CUDA_RESOURCE_DESC& resource);
/// Adds every word among a kernel's parameters that may be an address: one that is none may hold a launch as
/// well. Source: CUDA Driver API, cuFuncGetParamInfo.
void add_kernel(gate::Named& named, CUfunction function, void** parameters, void** extra);
/// Adds what a node of these parameters, of whichever version, names: a kernel, a fill, numbers in memory or
/// a copy.
template <class Node>
void add_node(gate::Named& named, const Node& node) {
    if constexpr (requires { node.kernelParams; }) {
        auto* function = node.func;
        if constexpr (requires { node.kern; })
            if (!function) function = reinterpret_cast<CUfunction>(node.kern);
        add_kernel(named, function, node.kernelParams, node.extra);
    } else if constexpr (requires { node.elementSize; }) {
        add_rows(named, node.dst, node.pitch, node.width * node.elementSize, node.height);
    } else if constexpr (requires { node.paramArray; }) {
        add_each(named, node.paramArray, node.count);
    } else {
        static_assert(std::is_same_v<Node, CUDA_MEMCPY3D>);
        add_copy(named, node);
    }
}

/// Whether work that the calling thread submits to the stream now is recorded, and not done, whatever other
/// threads do meanwhile: it belongs to a capture that this thread began and no other may end. `per_thread`: a
/// null stream is the thread's own.
[[nodiscard]] bool is_recorded(CUstream stream, bool per_thread) noexcept;

/// Notes the addresses of all nodes of `graph`, those of child graphs among them, in place of those noted
/// before.
void note_graph(CUgraphExec executable, CUgraph graph) noexcept;
/// Notes what one changed node names now.
void note_node(CUgraphExec executable, CUgraphNode node, const gate::Inspector& names) noexcept;
void forget_graph(CUgraphExec executable) noexcept;
/// Adds what the graph's nodes name, as they were when it was instantiated or last changed; knows nothing of
/// an executable graph that it did not see made.
void add_graph(gate::Named& named, CUgraphExec graph);
/// Adds what all nodes of `graph` name, those of child graphs among them.
void add_nodes(gate::Named& named, CUgraph graph);
/// Adds what those of them name whose memory the driver looks at as soon as it has them: copies, fills,
/// numbers in memory, but no kernels.
void add_checked_nodes(gate::Named& named, CUgraph graph);
/// Adds what a node of these parameters names.
void add_node(gate::Named& named, const CUgraphNodeParams& node);
inline void add_node(gate::Named& named, CUgraph child) {
    add_nodes(named, child);
}

} // namespace gpu_sleep::hooks
