// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuIpc*MemHandle: plain allocations, opened by other processes. A handle names the memory file of the
// process that made it, which must live while others open it.

#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/plain_memory.hpp"

#include "base/fd.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace gpu_sleep::sim {
namespace {

constexpr std::uint64_t k_handle_magic = 0x3031435049534753; // "SGSIPC10"

/// What the bytes of a handle say.
struct IpcTicket {
    std::uint64_t magic = k_handle_magic;
    pid_t process = 0;
    int fd = -1; ///< in that process
    std::uint64_t bytes = 0;
};
static_assert(sizeof(IpcTicket) <= sizeof(CUipcMemHandle));

std::shared_ptr<Physical> open_memory(const IpcTicket& ticket) {
    const auto path = "/proc/" + std::to_string(ticket.process) + "/fd/" + std::to_string(ticket.fd);
    UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    return file ? Physical::import(file.get(), Standing::ipc_import) : nullptr;
}

} // namespace
} // namespace gpu_sleep::sim

SIM_ENTRY(safe, 4010) cuIpcGetMemHandle(Call& c, Context&, CUipcMemHandle* handle, CUdeviceptr address) {
    const auto* mapping = c.driver.space.find(address);
    const auto plain = mapping ? c.driver.plain.find(mapping->begin) : c.driver.plain.end();
    // Nothing but memory of cuMemAlloc can be shared this way.
    if (!handle || plain == c.driver.plain.end() || plain->second.kind != PlainAllocation::Kind::allocated)
        return CUDA_ERROR_INVALID_VALUE;
    const auto memory = mapping->memory;
    SIM_TRY(share(c.driver, *memory));
    const IpcTicket ticket{k_handle_magic, ::getpid(), memory->fd(), plain->second.bytes};
    *handle = {};
    std::memcpy(handle->reserved, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 11000)
cuIpcOpenMemHandle(Call& c, Context& context, CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
    IpcTicket ticket;
    std::memcpy(&ticket, handle.reserved, sizeof ticket);
    if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || ticket.magic != k_handle_magic)
        return CUDA_ERROR_INVALID_VALUE;
    if (ticket.process == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    const auto memory = open_memory(ticket);
    if (!memory || memory->device() >= c.driver.device_count()) return CUDA_ERROR_INVALID_VALUE;
    return add_plain_memory(c.driver, context, memory, ticket.bytes, PlainAllocation::Kind::imported,
                            *address);
}

SIM_ENTRY(safe, 4010) cuIpcCloseMemHandle(Call& c, Context& context, CUdeviceptr address) {
    const auto found = c.driver.plain.find(address);
    if (found == c.driver.plain.end() || found->second.kind != PlainAllocation::Kind::imported)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(wait_for(c, context, all_work(context)));
    free_plain_memory(c.driver, address);
    return CUDA_SUCCESS;
}
