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
/// Notes what one changed node names, besides what the graph named before.
void note_kernel(CUgraphExec executable, CUfunction function, void** parameters, void** extra) noexcept;
void note_copy(CUgraphExec executable, const CUDA_MEMCPY3D& copy) noexcept;
void note_memset(CUgraphExec executable, const CUDA_MEMSET_NODE_PARAMS& fill) noexcept;
/// A node was changed in a way that is not looked into.
void note_unknown(CUgraphExec executable) noexcept;
void forget_graph(CUgraphExec executable) noexcept;

} // namespace gpu_sleep::hooks
