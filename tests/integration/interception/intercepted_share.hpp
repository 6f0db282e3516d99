// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sharing virtual memory between capture programs, as programs do that use the driver's own calls for it: a
// descriptor that goes through a socket. And whatever else others have a part in.

#pragma once

#include "intercepted_memory.hpp"

namespace gpu_sleep::test {

/// Exports the first handle of `memory` to whoever receives at `path`, and closes the descriptor. Without a
/// path returns its number. Errors: driver_failed, io_failed.
[[nodiscard]] Result<int> export_memory(const Memory& memory, const std::string& path);

/// Waits at `path` for memory, and imports it. Closes the descriptor, or leaves it in `kept`. Errors:
/// driver_failed, io_failed.
[[nodiscard]] Result<CUmemGenericAllocationHandle> import_handle(const std::string& path, int* kept);

/// Exports shareable_pool() to whoever imports it at `path`. Errors: driver_failed, io_failed.
[[nodiscard]] Result<void> export_pool(const std::string& path);
/// Waits for it at `path`: pointers are imported by this one from then on. Errors: driver_failed, io_failed.
[[nodiscard]] Result<void> import_pool(const std::string& path);
/// Opens it to another GPU. Errors: driver_failed.
[[nodiscard]] Result<void> open_imported_pool(int gpu);
/// Destroys it. Errors: driver_failed.
[[nodiscard]] Result<void> destroy_imported_pool();
/// By which others import memory of the pool, in hexadecimal. Errors: driver_failed.
[[nodiscard]] Result<std::string> export_pointer(const Memory& memory);
/// Errors: driver_failed.
[[nodiscard]] Result<Memory> import_pointer(const std::string& pointer, std::size_t bytes);
/// "USED POOL ALLOCATION": what the imported pool says is used, whether `memory` is of it, and the status of
/// an allocation from it. Errors: driver_failed.
[[nodiscard]] Result<std::string> describe_imported(const Memory& memory, CUstream stream);

/// Makes what others have a part in: "event", "pool" or "imported_pool" (of the driver's), "memory" or
/// "semaphore" (from outside CUDA), or "opened_event" by the handle of another process's. Returns the handle
/// of an event. Errors: driver_failed, invalid_argument.
[[nodiscard]] Result<std::string> make_shared_object(const std::string& kind, const std::string& handle);
/// Destroys what was made last. Errors: driver_failed.
[[nodiscard]] Result<void> destroy_shared_object();
/// Binds `memory` to a new multicast group. Errors: driver_failed.
[[nodiscard]] Result<void> bind_to_multicast(const Memory& memory);

/// Bytes of a handle as text, and back.
[[nodiscard]] std::string in_hexadecimal(std::span<const std::byte> bytes);
void from_hexadecimal(const std::string& text, std::span<std::byte> bytes);

} // namespace gpu_sleep::test
