// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Legacy CUDA IPC of ranges. The driver makes no such handle of virtual memory, so a handle of ours says
// where to ask for it; the agents pass the memory itself on as a descriptor. What is shared stays on the GPU.

#include "intercepted/memory.hpp"

#include "intercepted/freeing.hpp"

#include <sys/random.h>

#include <cstring>

namespace gpu_sleep::agent::intercepted {
namespace {

constexpr std::uint64_t k_magic = 0x3143'5049'5053'4C47; // "GLSPIPC1"

/// A process that shares answers at once, also during a sleep, unless it is stopped or its driver is busy.
constexpr Milliseconds k_patience{10'000};

/// The contents of a handle.
struct Ticket {
    std::uint64_t magic = k_magic;
    std::uint64_t start_time = 0;
    model::SharedMemoryRequest request;
    std::int64_t pid = 0;
    [[nodiscard]] ProcessIdentity process() const { return {static_cast<pid_t>(pid), start_time}; }
};
static_assert(sizeof(Ticket) <= sizeof(CUipcMemHandle) && std::is_trivially_copyable_v<Ticket>);

/// A number that only processes know to which this one gave a handle; nothing without random numbers.
std::optional<std::array<std::uint64_t, 2>> secret() {
    using Words = std::array<std::uint64_t, 2>;
    static const auto s_secret = []() -> std::optional<Words> {
        Words words{};
        return ::getrandom(words.data(), sizeof words, 0) == sizeof words ? std::optional(words)
                                                                          : std::nullopt;
    }();
    return s_secret;
}

Result<ProcessIdentity> this_process() {
    const auto start_time = own_start_time();
    if (!start_time) return start_time.error();
    return ProcessIdentity{::getpid(), *start_time};
}

Result<Import> map_import(const driver::Api& api, const server::SharedMemory& shared,
                          driver::DeviceMask access) {
    const driver::RelaxedCaptureMode relaxed(api);
    CUmemGenericAllocationHandle handle = 0;
    auto* const descriptor = reinterpret_cast<void*>(static_cast<std::intptr_t>(shared.memory.get()));
    GPU_SLEEP_DRIVER_TRY(api, cuMemImportFromShareableHandle, "cannot open shared memory", &handle,
                         descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    const driver::PhysicalMemory memory(api, handle); // the mapping holds it from here on
    auto place = driver::VaReservation::create(api, shared.what.bytes);
    if (!place) return std::move(place).error();
    const auto span = place->span();
    GPU_SLEEP_TRY(driver::map(api, span, memory.get()));
    if (auto granted = driver::set_access(api, span, access); !granted) {
        static_cast<void>(driver::unmap(api, span));
        return std::move(granted).error();
    }
    return Import{{}, 0, span.address + shared.what.offset, *std::move(place), access, 1};
}

/// The status of the driver's call that failed: nothing else fails while shared memory is mapped.
CUresult to_status(const Error& error) noexcept {
    return error.driver_status != 0 ? static_cast<CUresult>(error.driver_status) : CUDA_ERROR_UNKNOWN;
}

/// One more open of what is open already, for a device more perhaps; no answer when it is not.
Answer open_again(const driver::Api& api, Imports& imports, const Ticket& ticket, driver::DeviceMask device,
                  CUdeviceptr& address) GPU_SLEEP_REQUIRES(imports.mutex) {
    for (auto& import : imports.all) {
        if (import.from != ticket.process() || import.allocation != ticket.request.allocation) continue;
        if ((import.access & device) == 0) {
            const auto granted = driver::set_access(api, import.place.span(), import.access | device);
            if (!granted) return to_status(granted.error());
            import.access |= device;
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
        const Ticket ticket{
            .start_time = self->start_time, .request = {*words, known->address, known->id}, .pid = self->pid};
        *handle = {};
        std::memcpy(handle->reserved, &ticket, sizeof ticket);
        return CUDA_SUCCESS;
    });
}

Result<server::SharedMemory> share(const model::SharedMemoryRequest& request) {
    const auto with = memory();
    if (!with || !with->may_call_driver() || request.secret != secret())
        return make_error(ErrorCode::not_owned, "there is no such shared memory");
    const auto is_allocated = [&] {
        const auto known = books().allocations.find(request.address);
        return known && known->id == request.allocation;
    };
    auto opened = with->shared_ranges().open(with->api(), request.address, request.allocation, is_allocated);
    if (!opened) return std::move(opened).error();
    return server::SharedMemory{{opened->range.bytes, opened->range.offset}, std::move(opened->memory)};
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
        {
            const MutexLock lock(imports.mutex);
            if (const auto known = open_again(memory.api(), imports, ticket, mask, *address)) return known;
        }
        const auto shared =
            server::ask_for_memory(ticket.process(), ticket.request, Clock::now() + k_patience);
        if (!shared) {
            log::warning("memory of process {} cannot be opened: {}", ticket.pid, shared.error().message);
            return CUDA_ERROR_INVALID_VALUE;
        }
        auto import = map_import(memory.api(), *shared, mask);
        if (!import) return to_status(import.error());
        import->from = ticket.process();
        import->allocation = ticket.request.allocation;
        const MutexLock lock(imports.mutex);
        if (const auto known = open_again(memory.api(), imports, ticket, mask, *address)) {
            unmap_import(memory.api(), *import); // another thread was faster
            return known;
        }
        *address = import->given;
        imported(import->given, shared->what.bytes, "ipc");
        imports.all.push_back(*std::move(import));
        return CUDA_SUCCESS;
    });
}

Answer close_ipc(CUdeviceptr address) noexcept {
    return answered_with_memory([&](ProgramMemory&) -> Answer {
        auto& imports = books().imports;
        Later::Items closed;
        {
            const MutexLock lock(imports.mutex);
            const auto import = std::find_if(imports.all.begin(), imports.all.end(),
                                             [&](const Import& i) { return i.given == address; });
            if (import == imports.all.end()) return std::nullopt;
            if (--import->opens != 0) return CUDA_SUCCESS;
            closed.imports.splice(closed.imports.end(), imports.all, import); // which takes no memory
        }
        books().residual.take(address);
        books().later.add(closed);
        free_waiting();
        return CUDA_SUCCESS;
    });
}

} // namespace gpu_sleep::agent::intercepted
