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

} // namespace gpu_sleep::hooks
