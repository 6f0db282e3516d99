// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuIpc*MemHandle: plain allocations, opened by other processes. A handle names the memory file of the
// process that made it, which must live while others open it. So do pointers of pools that others import.

#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/memory_pools.hpp"
#include "support/simulated_driver/plain_memory.hpp"

#include "base/fd.hpp"

#include <fcntl.h>
#include <sys/mman.h>
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

constexpr std::uint64_t k_pool_magic = 0x30314C4F4F504753; // "SGPOOL10"

/// What the file says that stands for a pool, and the beginning of what a pointer of it is imported by.
struct PoolTicket {
    std::uint64_t magic = k_pool_magic;
    pid_t process = 0;
    int device = 0;
    CUmemoryPool pool = nullptr; ///< in that process
};
struct PoolPointerTicket {
    PoolTicket pool;
    IpcTicket memory;
};
static_assert(sizeof(PoolPointerTicket) <= sizeof(CUmemPoolPtrExportData));

PoolTicket ticket_of(const MemoryPool& pool) {
    return {k_pool_magic, ::getpid(), pool.device, pool.handle};
}

/// The pool that can be shared; null if that cannot be.
std::shared_ptr<MemoryPool> shared_pool(const std::shared_ptr<MemoryPool>& pool) {
    const bool is_shared = pool && pool->handle_types == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return is_shared ? pool : nullptr;
}

std::shared_ptr<Physical> open_memory(const IpcTicket& ticket, Standing kind) {
    const auto path = "/proc/" + std::to_string(ticket.process) + "/fd/" + std::to_string(ticket.fd);
    UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    return file ? Physical::import(file.get(), kind) : nullptr;
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
    const auto memory = open_memory(ticket, Standing::ipc_import);
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

SIM_ENTRY(safe, 11020)
cuMemPoolExportToShareableHandle(Call& c, void* descriptor, CUmemoryPool handle,
                                 CUmemAllocationHandleType type, unsigned long long) {
    SIM_FIND(pool, shared_pool(c.driver.memory_pools.find(handle)), CUDA_ERROR_INVALID_VALUE);
    if (!descriptor || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    const auto ticket = ticket_of(*pool);
    UniqueFd made(::memfd_create("simulated pool", MFD_CLOEXEC));
    if (::write(made.get(), &ticket, sizeof ticket) != sizeof ticket) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(descriptor) = made.release();
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 11020)
cuMemPoolImportFromShareableHandle(Call& c, CUmemoryPool* handle, void* descriptor,
                                   CUmemAllocationHandleType type, unsigned long long) {
    const auto number = static_cast<int>(reinterpret_cast<std::intptr_t>(descriptor));
    PoolTicket ticket;
    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        ::pread(number, &ticket, sizeof ticket, 0) != sizeof ticket || ticket.magic != k_pool_magic ||
        !c.driver.has_device(ticket.device))
        return CUDA_ERROR_INVALID_VALUE;
    const auto pool = std::make_shared<MemoryPool>();
    pool->is_imported = true;
    pool->device = ticket.device;
    pool->owner = ticket.process;
    pool->handle_there = ticket.pool;
    note_standing(Standing::pool_import, 1);
    pool->handle = c.driver.memory_pools.insert(pool);
    *handle = pool->handle;
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 11020)
cuMemPoolExportPointer(Call& c, CUmemPoolPtrExportData* data, CUdeviceptr address) {
    const auto block = c.driver.blocks.find(address);
    const bool is_live = block != c.driver.blocks.end() && block->second.state == PoolBlock::State::live;
    if (!data || !is_live || !shared_pool(block->second.pool)) return CUDA_ERROR_INVALID_VALUE;
    const auto memory = c.driver.space.find(address)->memory;
    SIM_TRY(share(c.driver, *memory));
    const PoolPointerTicket ticket{ticket_of(*block->second.pool),
                                   {k_handle_magic, ::getpid(), memory->fd(), block->second.bytes}};
    *data = {};
    std::memcpy(data->reserved, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

SIM_ENTRY(safe, 11020)
cuMemPoolImportPointer(Call& c, Context& context, CUdeviceptr* address, CUmemoryPool handle,
                       CUmemPoolPtrExportData* data) {
    SIM_FIND(pool, c.driver.memory_pools.find(handle), CUDA_ERROR_INVALID_VALUE);
    PoolPointerTicket ticket;
    if (!address || !data || !pool->is_imported) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(&ticket, data->reserved, sizeof ticket);
    if (ticket.memory.magic != k_handle_magic || ticket.pool.process != pool->owner ||
        ticket.pool.pool != pool->handle_there)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_FIND(memory, open_memory(ticket.memory, Standing::pool_import), CUDA_ERROR_INVALID_VALUE);
    return import_block(c.driver, pool, context, memory, ticket.memory.bytes, *address);
}
