// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Legacy CUDA IPC of ranges. The driver makes no such handle of virtual memory, so a handle of ours says
// where to ask for it; the agents pass the memory itself on as a descriptor.

#include "intercepted/memory.hpp"

#include "intercepted/freeing.hpp"
#include "intercepted/sharing.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace gpu_sleep::agent::intercepted {
namespace {

constexpr std::uint64_t k_magic = 0x3143'5049'5053'4C47; // "GLSPIPC1"

/// The contents of a handle.
struct Ticket {
    std::uint64_t magic = k_magic;
    std::uint64_t start_time = 0;
    std::array<std::uint64_t, 2> secret{};
    std::uint64_t address = 0;
    std::uint64_t allocation = 0;
    std::int64_t pid = 0;
    [[nodiscard]] model::SharedMemoryRequest request() const { return {secret, address, allocation}; }
    [[nodiscard]] ProcessIdentity process() const { return {static_cast<pid_t>(pid), start_time}; }
};
static_assert(sizeof(Ticket) <= sizeof(CUipcMemHandle) && std::is_trivially_copyable_v<Ticket>);

Result<ProcessIdentity> this_process() {
    const auto start_time = own_start_time();
    if (!start_time) return start_time.error();
    return ProcessIdentity{::getpid(), *start_time};
}

/// Memory that is opened, and mapped at its place.
struct Opened {
    Import import;
    driver::PhysicalMemory memory;
};

Result<Opened> map_import(const driver::Api& api, const server::SharedMemory& shared,
                          driver::DeviceMask access) {
    const driver::RelaxedCaptureMode relaxed(api);
    auto memory = import_memory(api, shared.memory);
    if (!memory) return std::move(memory).error();
    auto place = driver::VaReservation::create(api, shared.what.bytes);
    if (!place) return std::move(place).error();
    const auto span = place->span();
    GPU_SLEEP_TRY(driver::map(api, span, memory->get()));
    if (auto granted = driver::set_access(api, span, access); !granted) {
        static_cast<void>(driver::unmap(api, span));
        return std::move(granted).error();
    }
    return Opened{{{}, {}, span.address, span.address + shared.what.offset, *std::move(place), access},
                  *std::move(memory)};
}

/// Puts into the books what was opened, which stays. May throw for want of memory: then nothing has changed.
void add(LockedMemory& locked, Opened&& opened, int device) {
    const auto span = opened.import.place->span();
    auto allocation = make_entry<Allocations::Taken>(
        span.address, Allocation{.address = span.address,
                                 .bytes = span.bytes,
                                 .device = device,
                                 .is_virtual = true,
                                 .access = opened.import.access,
                                 .handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR});
    ledger::Backing backing;
    backing.address = span.address;
    backing.bytes = backing.allocated = span.bytes;
    backing.tag = locked.ledger().tag_id(model::k_default_tag);
    backing.device = device;
    backing.access = opened.import.access;
    backing.mapped = true;
    backing.imported = true;
    backing.stay_reason = k_of_another_process;
    backing.handle = opened.memory.get();
    std::list<Import> made(1); // what takes memory comes first
    locked.ledger().add(std::move(backing));
    static_cast<void>(opened.memory.release());
    books().allocations.add(std::move(allocation));
    made.front() = std::move(opened.import);
    auto& imports = books().imports;
    const MutexLock lock(imports.mutex);
    imports.all.splice(imports.all.end(), made);
}

/// One more open of what is open already, for a device more perhaps; no answer when it is not.
Answer open_again(const driver::Api& api, LockedMemory& locked, Imports& imports, const Ticket& ticket,
                  driver::DeviceMask device, CUdeviceptr& address) GPU_SLEEP_REQUIRES(imports.mutex) {
    for (auto& import : imports.all) {
        if (!import.place || import.from != ticket.process() || import.asked.allocation != ticket.allocation)
            continue;
        auto& backing = *locked.ledger().find(import.at);
        if ((import.access & device) == 0) {
            if (backing.mapped) {
                const auto granted = driver::set_access(api, import.place->span(), import.access | device);
                if (!granted) return to_status(granted.error());
            }
            backing.access = import.access |= device;
        }
        ++import.opens;
        address = import.given;
        return CUDA_SUCCESS;
    }
    return std::nullopt;
}

} // namespace

Answer ipc_handle(CUipcMemHandle* handle, CUdeviceptr address) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        const auto known = books().allocations.find(address);
        // The driver makes no handle of virtual memory, nor of that of pools.
        if (!handle || !known || known->is_virtual || known->pool) return std::nullopt;
        const auto self = this_process();
        const auto words = secret();
        if (!self || !words) return CUDA_ERROR_OPERATING_SYSTEM;
        const auto shared = memory.share(known->address, known->id, k_shared_by_ipc);
        if (!shared) {
            if (shared.error().code == ErrorCode::not_owned) return std::nullopt;
            return shared.error().code == ErrorCode::refused ? k_sleeps : CUDA_ERROR_NOT_SUPPORTED;
        }
        const Ticket ticket{.start_time = self->start_time,
                            .secret = *words,
                            .address = known->address,
                            .allocation = known->id,
                            .pid = self->pid};
        *handle = {};
        std::memcpy(handle->reserved, &ticket, sizeof ticket);
        return CUDA_SUCCESS;
    });
}

Answer open_ipc(CUdeviceptr* address, const CUipcMemHandle& handle, unsigned flags) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        Ticket ticket;
        std::memcpy(&ticket, handle.reserved, sizeof ticket);
        if (ticket.magic != k_magic) return std::nullopt;
        if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || ticket.process().pid != ticket.pid)
            return CUDA_ERROR_INVALID_VALUE;
        const auto self = this_process();
        const auto device = driver::current_device(memory.api());
        if (!device || *device >= driver::k_max_devices || (self && *self == ticket.process()))
            return CUDA_ERROR_INVALID_CONTEXT; // as the driver's own, in the process that shares
        const auto mask = driver::DeviceMask{1} << *device;
        auto& imports = books().imports;
        const auto again = [&](LockedMemory& locked) {
            const MutexLock lock(imports.mutex);
            return open_again(memory.api(), locked, imports, ticket, mask, *address);
        };
        if (const auto known = memory.with_lock(again)) return known;
        const Passing passing({ticket.process(), ticket.request()});
        const auto shared = ask_until_awake(ticket.process(), ticket.request());
        if (!shared) {
            log::warning("memory of process {} cannot be opened: {}", ticket.pid, shared.error().message);
            return CUDA_ERROR_INVALID_VALUE;
        }
        auto opened = map_import(memory.api(), *shared, mask);
        if (!opened) return to_status(opened.error());
        opened->import.from = ticket.process();
        opened->import.asked = ticket.request();
        const auto span = opened->import.place->span();
        const auto status = answered([&] {
            opened->import.closing.push_back({ticket.process(), ticket.request()}); // then it takes no memory
            return memory.with_lock([&](LockedMemory& locked) -> Answer {
                if (const auto known = again(locked)) return known; // another thread was faster
                *address = opened->import.given;
                add(locked, *std::move(opened), *device);
                return CUDA_SUCCESS;
            });
        });
        if (opened->memory.get() != 0) static_cast<void>(driver::unmap(memory.api(), span));
        return status;
    });
}

Answer close_ipc(CUdeviceptr address) noexcept {
    return answered_with_memory([&](ProgramMemory&) -> Answer {
        auto& imports = books().imports;
        Later::Items closed;
        {
            const MutexLock lock(imports.mutex);
            const auto import = std::find_if(imports.all.begin(), imports.all.end(),
                                             [&](const Import& i) { return i.place && i.given == address; });
            if (import == imports.all.end()) return std::nullopt;
            if (--import->opens != 0) return CUDA_SUCCESS;
            imports.passing.splice(imports.passing.end(), import->closing);
            closed.imports.splice(closed.imports.end(), imports.all, import); // which takes no memory
        }
        books().residual.take(address);
        books().later.add(closed);
        free_waiting();
        return CUDA_SUCCESS;
    });
}

} // namespace gpu_sleep::agent::intercepted
