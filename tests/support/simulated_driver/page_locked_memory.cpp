// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuMemHost*: registering and allocating page-locked memory.

#include "support/simulated_driver/entry.hpp"

namespace gpu_sleep::sim {
namespace {

constexpr unsigned k_alloc_flags =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
constexpr unsigned k_register_flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                      CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;

CUresult allocate(Call& c, const Context& context, void** pointer, std::size_t bytes, unsigned flags) {
    if (!pointer || bytes == 0 || (flags & ~k_alloc_flags) != 0) return CUDA_ERROR_INVALID_VALUE;
    HostRange range;
    range.bytes = bytes;
    range.owner = &context;
    std::uint64_t begin = 0;
    SIM_TRY(c.driver.host.allocate(range, begin));
    *pointer = reinterpret_cast<void*>(begin);
    return CUDA_SUCCESS;
}

} // namespace
} // namespace gpu_sleep::sim

SIM_ENTRY(unsafe, 2020)
cuMemHostAlloc(Call& c, Context& context, void** pointer, std::size_t bytes, unsigned flags) {
    return allocate(c, context, pointer, bytes, flags);
}

SIM_ENTRY(unsafe, 2000) cuMemFreeHost(Call& c, Context&, void* pointer) {
    return c.driver.host.free(reinterpret_cast<std::uint64_t>(pointer));
}

SIM_ENTRY(unsafe, 6050)
cuMemHostRegister(Call& c, Context& context, void* pointer, std::size_t bytes, unsigned flags) {
    if ((flags & ~k_register_flags) != 0) return CUDA_ERROR_INVALID_VALUE;
    HostRange range;
    range.begin = reinterpret_cast<std::uint64_t>(pointer);
    range.bytes = bytes;
    range.owner = &context;
    return c.driver.host.add(range);
}

SIM_ENTRY(unsafe, 4000) cuMemHostUnregister(Call& c, Context&, void* pointer) {
    return c.driver.host.remove(reinterpret_cast<std::uint64_t>(pointer));
}
