// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Giving memory that the program has shared to another process.

#pragma once

#include "server/peer.hpp"

namespace gpu_sleep::agent::intercepted {

/// Why shared memory stays on the GPU.
inline constexpr char k_shared_by_ipc[] = "shared with other processes by CUDA IPC";

/// Memory of which the program made a handle. Thread-safe; does not wait for a sleep. Errors: not_owned
/// (there is no such memory, or no longer), driver_failed.
[[nodiscard]] Result<server::SharedMemory> share(const model::ShareRequest& request);

} // namespace gpu_sleep::agent::intercepted
