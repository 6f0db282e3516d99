// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Legacy CUDA IPC of ranges. Source: CUDA Driver API, cuIpcGetMemHandle.

#pragma once

#include "intercepted/calls.hpp"
#include "model/request.hpp"
#include "server/shared_memory.hpp"

#include <cuda.h>

namespace gpu_sleep::agent::intercepted {

/// A handle of ours for a plain allocation, which stays on the GPU from now on.
[[nodiscard]] Answer ipc_handle(CUipcMemHandle* handle, CUdeviceptr address) noexcept;
/// Opens such a handle of another process; waits for that one.
[[nodiscard]] Answer open_ipc(CUdeviceptr* address, const CUipcMemHandle& handle, unsigned flags) noexcept;
[[nodiscard]] Answer close_ipc(CUdeviceptr address) noexcept;
/// Memory of which the program made a handle. Thread-safe; does not wait for a sleep. Errors: not_owned
/// (there is no such memory, or no longer), driver_failed.
[[nodiscard]] Result<server::SharedMemory> share(const model::SharedMemoryRequest& request);

} // namespace gpu_sleep::agent::intercepted
