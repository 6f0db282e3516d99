// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory of the capture program, allocated in each way that programs do.

#pragma once

#include "base/error.hpp"
#include "driver_calls.hpp"

#include <cstddef>
#include <cstdlib>
#include <vector>

namespace gpu_sleep::test {

/// What a call of the driver returned. Errors: driver_failed.
[[nodiscard]] Result<void> checked(CUresult result, const char* call);
#define GPU_SLEEP_TEST_CALL(name, ...)                                                                       \
    GPU_SLEEP_TRY(::gpu_sleep::test::checked(::gpu_sleep::test::cuda().name(__VA_ARGS__), #name))

/// The GPU that the program uses: 0, or TEST_GPU.
inline int chosen_gpu() {
    const char* const gpu = std::getenv("TEST_GPU");
    return gpu ? std::atoi(gpu) : 0;
}

/// A reservation with memory mapped side by side, as the program's own VMM calls made it.
struct Segments {
    CUdeviceptr begin = 0;
    std::size_t reserved = 0, handle_bytes = 0;
    std::vector<CUmemGenericAllocationHandle> handles;
    bool has_handles = true; ///< they are not yet released
};

struct Memory {
    std::string kind;
    CUdeviceptr address = 0; ///< 0 once it was freed
    std::size_t bytes = 0;
    Segments segments;       ///< of the kinds that make their own
    Segments second;         ///< another mapping of the first handle
    CUarray array = nullptr; ///< of the kind that has no address to speak of
};

/// Allocates `bytes` (a multiple of 8). KIND is
///   plain      cuMemAlloc
///   pitch      cuMemAllocPitch, one row
///   managed    cuMemAllocManaged
///   async      cuMemAllocAsync in `stream`
///   pool       cuMemAllocFromPoolAsync in `stream`, from a pool of the program's own
///   shareable  the same, from shareable_pool()
///   vmm2       a reservation, and handles of 2 MiB
///   vmm20      a reservation, and handles of 20 MiB
///   segments   a reservation of 1 GiB, of which only the beginning is mapped, by handles of 20 MiB
///   alias      one handle, mapped at two places
///   shared     one handle that can be exported
///   array      cuArrayCreate, one row of bytes
/// Memory of another process, opened, is of the kind "opened", or "pointer" where it was imported by a pool.
/// Errors: driver_failed, invalid_argument.
[[nodiscard]] Result<Memory> allocate(const std::string& kind, std::size_t bytes, CUstream stream);

/// A pool of at most so many bytes, if that is not 0. Errors: driver_failed.
[[nodiscard]] Result<CUmemoryPool> make_pool(CUmemAllocationHandleType types, std::size_t most = 0);
/// The program's own pool that others can import, made when it is first needed. Errors: driver_failed.
[[nodiscard]] const Result<CUmemoryPool>& shareable_pool();

/// Maps the one handle of memory of another process; it is of the kind "imported". Errors: driver_failed.
[[nodiscard]] Result<Memory> map_handle(CUmemGenericAllocationHandle handle, std::size_t bytes);

/// Releases the handles of the program's own virtual memory, which its mappings keep. Errors: driver_failed.
[[nodiscard]] Result<void> release_handles(Segments& segments);

/// Frees it; asynchronous kinds in `stream`. Errors: driver_failed.
[[nodiscard]] Result<void> release(Memory& memory, CUstream stream);

} // namespace gpu_sleep::test
