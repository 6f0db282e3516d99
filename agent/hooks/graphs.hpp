// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What executable graphs name: noted when they are instantiated and changed, since the driver does not tell
// it of them later.

#pragma once

#include "hooks/driver_table.hpp"

namespace gpu_sleep::hooks {

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
