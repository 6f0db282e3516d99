// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sharing virtual memory between capture programs, as programs do that use the driver's own calls for it: a
// descriptor that goes through a socket.

#pragma once

#include "intercepted_memory.hpp"

#include <string>

namespace gpu_sleep::test {

/// Exports the first handle of `memory` to whoever receives at `path`. Errors: driver_failed, io_failed.
[[nodiscard]] Result<void> export_memory(const Memory& memory, const std::string& path);

/// Waits at `path` for memory of `bytes`, imports and maps it. Errors: driver_failed, io_failed.
[[nodiscard]] Result<Memory> import_memory(const std::string& path, std::size_t bytes);

} // namespace gpu_sleep::test
