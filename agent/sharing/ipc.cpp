// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// CUDA IPC of ranges: legacy handles, and pools with their pointers. The driver shares no virtual memory in
// these ways, so what programs pass on says where to ask for it; the agents pass the memory itself on as a
// descriptor.

#include "sharing/sharing.hpp"

#include "intercepted/freeing.hpp"
#include "intercepted/memory.hpp"
#include "intercepted/virtual_memory.hpp"
#include "sharing/inside.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace gpu_sleep::agent::sharing {
namespace {

constexpr std::uint64_t k_magic = 0x3143'5049'5053'4C47; // "GLSPIPC1"

/// The contents of a handle, or of what a pointer of a pool is imported by.
struct Ticket {
    std::uint64_t magic = k_magic;
    std::uint64_t start_time = 0;
    std::array<std::uint64_t, 2> secret{};
    std::uint64_t address = 0;
    std::uint64_t allocation = 0;
    std::int32_t pid = 0;
    std::uint32_t pool = 0;  ///< the number of its pool; 0: it is of none
    std::uint64_t bytes = 0; ///< of the allocation
    [[nodiscard]] model::SharedMemoryRequest request() const { return {secret, address, allocation}; }
    [[nodiscard]] ProcessIdentity process() const { return {pid, start_time}; }
};
static_assert(sizeof(Ticket) <= sizeof(CUipcMemHandle) && sizeof(Ticket) <= sizeof(CUmemPoolPtrExportData) &&
              std::is_trivially_copyable_v<Ticket>);

template <class Handle>
Ticket ticket_in(const Handle& handle) {
    Ticket ticket;
    std::memcpy(&ticket, handle.reserved, sizeof ticket);
    return ticket;
}

constexpr std::uint64_t k_pool_magic = 0x314C'4F50'5053'4C47; // "GLSPPOL1"
constexpr int k_seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

/// The contents of the file that stands for a pool.
struct PoolTicket {
    std::uint64_t magic = k_pool_magic;
    std::uint64_t start_time = 0;
    std::int32_t pid = 0;
    std::uint32_t pool = 0;
    std::array<char, 48> uuid{}; ///< of its device
};
static_assert(std::is_trivially_copyable_v<PoolTicket>);

/// What a descriptor stands for, if it is of such a file, which nobody can change.
std::optional<PoolTicket> pool_behind(int descriptor) {
    PoolTicket ticket;
    const int seals = ::fcntl(descriptor, F_GET_SEALS);
    const bool is_whole = seals >= 0 && (seals & k_seals) == k_seals &&
                          ::pread(descriptor, &ticket, sizeof ticket, 0) == sizeof ticket;
    return is_whole && ticket.magic == k_pool_magic ? std::optional(ticket) : std::nullopt;
}

/// The device of a pool; the current one where the process does not see that.
int visible_device(const driver::Api& api, const PoolTicket& pool) {
    const std::string_view uuid(pool.uuid.data(), ::strnlen(pool.uuid.data(), pool.uuid.size()));
    const auto devices = driver::device_count(api);
    for (int device = 0; devices && device < *devices; ++device)
        if (driver::device_uuid(api, device) == uuid) return device;
    return driver::current_device(api).value_or(0);
}

std::shared_ptr<Pool> known_pool(Pools& all, CUmemoryPool handle) GPU_SLEEP_REQUIRES(all.mutex) {
    const auto found = all.pools.find(handle);
    return found == all.pools.end() ? nullptr : found->second;
}

Result<ProcessIdentity> this_process() {
    return ProcessIdentity{::getpid(), GPU_SLEEP_TRY(own_start_time())};
}

/// Memory that is opened, and mapped at its place.
struct Opened {
    Import import;
    driver::PhysicalMemory memory;
};

Result<Opened> map_import(const driver::Api& api, const server::SharedMemory& shared,
                          driver::DeviceMask access) {
    const driver::RelaxedCaptureMode relaxed(api);
    auto memory = GPU_SLEEP_TRY(import_memory(api, shared.memory.get()));
    auto place = GPU_SLEEP_TRY(map_at_own_place(api, shared.what.bytes, memory.get(), access));
    const auto at = place.span().address;
    return Opened{{{}, {}, at, at + shared.what.offset, std::move(place)}, std::move(memory)};
}

/// Where memory is opened. By CUDA IPC, the whole range that was mapped is the program's; by a pool, what the
/// owner allocated.
struct Target {
    Allocation allocation; ///< but for its span
    int device = 0;        ///< that copies it
    std::shared_ptr<Pool> pool{};
};

Allocation import_for(driver::DeviceMask access) {
    return {.access = access, .handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, .is_import = true};
}

/// Puts into the books what was opened, which stays. May throw for want of memory: then nothing has changed.
void add(LockedMemory& locked, Opened&& opened, const Ticket& ticket, const Target& target) {
    const auto span = opened.import.place->span();
    auto record = make_entry<Allocations::Taken>(0, target.allocation);
    record.mapped().address = target.pool ? opened.import.given : span.address;
    record.mapped().bytes = target.pool ? ticket.bytes : span.bytes;
    ledger::Backing backing;
    backing.address = span.address;
    backing.bytes = backing.allocated = span.bytes;
    backing.tag = locked.ledger().tag_id(model::k_default_tag);
    backing.device = target.device;
    backing.access = target.allocation.access;
    backing.mapped = true;
    backing.imported = true;
    backing.stay_reason = k_of_another_process;
    backing.handle = opened.memory.get();
    std::list<Import> made(1); // what takes memory comes first
    locked.ledger().add(std::move(backing));
    static_cast<void>(opened.memory.release());
    books().allocations.add(std::move(record));
    made.front() = std::move(opened.import);
    books().imports.add(std::move(made));
}

/// One more open of what is open already, for a device more perhaps; no answer when it is not.
Answer open_again(const driver::Api& api, LockedMemory& locked, Imports& imports, const Ticket& ticket,
                  const Target& target, CUdeviceptr& address) GPU_SLEEP_REQUIRES(imports.mutex) {
    for (auto& import : imports.all) {
        if (!import.place || import.opens == 0 || import.from != ticket.process() ||
            import.asked.allocation != ticket.allocation)
            continue;
        if (auto reached = extend_reach(api, locked, import, target.allocation.access); !reached)
            return to_status(reached.error());
        ++import.opens;
        address = import.given;
        return CUDA_SUCCESS;
    }
    return std::nullopt;
}

/// Writes a ticket for the allocation, which stays on the GPU from now on; no answer where it is not ours.
template <class Handle>
Answer write_ticket(ProgramMemory& memory, const Allocation& known, std::uint32_t pool, Handle& handle) {
    const auto self = this_process();
    const auto words = secret();
    if (!self || !words) return CUDA_ERROR_OPERATING_SYSTEM;
    const auto shared = memory.share(known.address, known.id, k_shared_by_ipc);
    if (!shared) {
        if (shared.error().code == ErrorCode::not_owned) return std::nullopt;
        return shared.error().code == ErrorCode::refused ? k_sleeps : CUDA_ERROR_NOT_SUPPORTED;
    }
    const Ticket ticket{.start_time = self->start_time,
                        .secret = *words,
                        .address = known.address,
                        .allocation = known.id,
                        .pid = self->pid,
                        .pool = pool,
                        .bytes = known.bytes};
    handle = {};
    std::memcpy(handle.reserved, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

/// Opens what a ticket names; waits for the process that shares it.
Answer open_memory(ProgramMemory& memory, CUdeviceptr& address, const Ticket& ticket, const Target& target) {
    const auto self = this_process();
    if (self && *self == ticket.process()) return CUDA_ERROR_INVALID_CONTEXT; // as the driver's own
    auto& imports = books().imports;
    const auto again = [&](LockedMemory& locked) {
        const MutexLock lock(imports.mutex);
        return open_again(memory.api(), locked, imports, ticket, target, address);
    };
    if (const auto known = memory.with_lock(again)) return known;
    const Passing passing({ticket.process(), ticket.request()});
    const auto shared = ask_until_awake(ticket.process(), ticket.request());
    if (!shared && shared.error().code == ErrorCode::cancelled) return k_sleeps;
    if (!shared) {
        log::warning("memory of process {} cannot be opened: {}", ticket.pid, shared.error().message);
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto& [bytes, offset, number, words] = shared->what;
    if (offset > bytes || ticket.bytes > bytes - offset) return CUDA_ERROR_INVALID_VALUE;
    auto opened = map_import(memory.api(), *shared, target.allocation.access);
    if (!opened) return to_status(opened.error());
    opened->import.from = ticket.process();
    opened->import.asked = ticket.request();
    opened->import.pool = target.pool;
    opened->import.is_in_common = target.pool || ticket.bytes <= memory::k_largest_small;
    const auto span = opened->import.place->span();
    const auto status = answered([&] {
        return memory.with_lock([&](LockedMemory& locked) -> Answer {
            if (const auto known = again(locked)) return known; // another thread was faster
            address = opened->import.given;
            add(locked, *std::move(opened), ticket, target);
            return CUDA_SUCCESS;
        });
    });
    if (opened->memory.get() != 0) static_cast<void>(driver::unmap(memory.api(), span));
    return status;
}

} // namespace

Answer ipc_handle(CUipcMemHandle* handle, CUdeviceptr address) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        const auto known = books().allocations.find(address);
        // The driver makes no handle of virtual memory, nor of that of pools.
        if (!handle || !known || known->is_virtual || known->pool) return std::nullopt;
        return write_ticket(memory, *known, 0, *handle);
    });
}

Answer open_ipc(CUdeviceptr* address, const CUipcMemHandle& handle, unsigned flags) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        const auto ticket = ticket_in(handle);
        if (ticket.magic != k_magic) return std::nullopt;
        if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || ticket.pool != 0)
            return CUDA_ERROR_INVALID_VALUE;
        const auto device = driver::current_device(memory.api());
        if (!device || *device >= driver::k_max_devices) return CUDA_ERROR_INVALID_CONTEXT;
        Target target{import_for(driver::DeviceMask{1} << *device), *device};
        target.allocation.device = *device;
        target.allocation.is_virtual = true;
        return open_memory(memory, *address, ticket, target);
    });
}

Answer close_ipc(CUdeviceptr address) noexcept {
    return answered_with_memory([&](ProgramMemory&) -> Answer {
        const auto left = books().imports.close_once(address, false);
        if (!left) return std::nullopt;
        if (*left != 0) return CUDA_SUCCESS;
        books().residual.take(address);
        auto& allocations = books().allocations;
        const auto known = allocations.find(address);
        auto closed = known ? allocations.take(known->address, true) : Allocations::Taken();
        books().later.add(closed); // work may yet use it
        free_waiting();
        return CUDA_SUCCESS;
    });
}

Answer export_pool(int* descriptor, CUmemoryPool handle) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        PoolTicket ticket;
        int device = 0;
        {
            auto& all = books().pools;
            const MutexLock lock(all.mutex);
            const auto pool = known_pool(all, handle);
            const bool is_ours = pool && pool->number != 0 && pool->is_intercepted && !pool->owner;
            if (!is_ours || !descriptor) return std::nullopt;
            pool->is_exported = true;
            ticket.pool = pool->number;
            device = pool->device;
        }
        const auto self = this_process();
        if (!self) return CUDA_ERROR_OPERATING_SYSTEM;
        ticket.pid = self->pid;
        ticket.start_time = self->start_time;
        driver::device_uuid(memory.api(), device).copy(ticket.uuid.data(), ticket.uuid.size());
        auto file = opened([&] { return ::memfd_create("gpu-sleep-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
        if (::write(file.get(), &ticket, sizeof ticket) != sizeof ticket ||
            ::fcntl(file.get(), F_ADD_SEALS, k_seals) != 0)
            return CUDA_ERROR_OPERATING_SYSTEM;
        *descriptor = file.release();
        return CUDA_SUCCESS;
    });
}

Answer import_pool(CUmemoryPool* handle, int descriptor) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        const auto& api = memory.api();
        const auto ticket = pool_behind(descriptor);
        if (!handle || !ticket || !api.cuMemPoolCreate) return std::nullopt;
        CUmemPoolProps empty{};
        empty.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        empty.location = {CU_MEM_LOCATION_TYPE_DEVICE, visible_device(api, *ticket)};
        if (!is_device(empty.location)) return CUDA_ERROR_INVALID_VALUE;
        // Memory for the record is taken first: once there is a pool, nothing may fail.
        auto made = make_entry<decltype(Pools::pools)>(nullptr, std::make_shared<Pool>());
        auto& pool = *made.mapped();
        pool.device = empty.location.id;
        pool.access = driver::DeviceMask{1} << pool.device;
        pool.owner = {ticket->pid, ticket->start_time};
        pool.number = ticket->pool;
        const auto status = api.cuMemPoolCreate(handle, &empty);
        if (status != CUDA_SUCCESS) return status;
        made.key() = pool.handle = *handle;
        auto& all = books().pools;
        const MutexLock lock(all.mutex);
        all.pools.erase(*handle);
        all.pools.insert(std::move(made));
        return CUDA_SUCCESS;
    });
}

Answer export_pointer(CUmemPoolPtrExportData* data, CUdeviceptr address) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        const auto known = books().allocations.find(address);
        std::uint32_t pool = 0;
        {
            auto& all = books().pools;
            const MutexLock lock(all.mutex);
            const auto block = known ? all.blocks.find(known->address) : all.blocks.end();
            if (block != all.blocks.end()) pool = block->second.range->pool->number;
        }
        return data && pool != 0 ? write_ticket(memory, *known, pool, *data) : std::nullopt;
    });
}

Answer import_pointer(CUdeviceptr* address, CUmemoryPool handle,
                      const CUmemPoolPtrExportData* data) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        if (!address || !data) return std::nullopt;
        const auto ticket = ticket_in(*data);
        const bool is_ours = ticket.magic == k_magic;
        Target target;
        {
            auto& all = books().pools;
            const MutexLock lock(all.mutex);
            target.pool = known_pool(all, handle);
            const bool is_imported = target.pool && target.pool->owner;
            if (!is_imported && !is_ours) return std::nullopt;
            if (!is_imported || !is_ours || ticket.bytes == 0 || ticket.pool != target.pool->number ||
                ticket.process() != target.pool->owner)
                return CUDA_ERROR_INVALID_VALUE;
            target.allocation = import_for(target.pool->access);
        }
        auto& made = target.allocation;
        const int own = made.device = target.pool->device;
        const int current = driver::current_device(memory.api()).value_or(own);
        target.device = (made.access >> current & 1) != 0 ? current : own;
        made.pool = handle;
        if (memory.api().cuCtxGetCurrent(&made.context) == CUDA_SUCCESS)
            made.context = books().contexts.owner_of_memory_in(made.context);
        const auto opened = open_memory(memory, *address, ticket, target);
        auto& all = books().pools;
        const MutexLock lock(all.mutex);
        if (opened == CUDA_SUCCESS && target.pool->access != made.access) // which was granted meanwhile
            let_reach_imports(memory, *target.pool);
        return opened;
    });
}

} // namespace gpu_sleep::agent::sharing
