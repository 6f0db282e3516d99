// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Allocating ranges, and waiting as the driver's own free does.

#include "intercepted/memory.hpp"

#include "common/interception.hpp"
#include "intercepted/contexts.hpp"
#include "intercepted/freeing.hpp"
#include "intercepted/rules.hpp"

#include <bit>

namespace gpu_sleep::agent::intercepted {

namespace {

driver::DeviceMask devices_in_use(ProgramMemory& memory) {
    driver::DeviceMask mask = 0;
    const auto devices = driver::device_count(memory.api());
    for (int device = 0; devices && device < std::min(*devices, driver::k_max_devices); ++device)
        if (is_primary_active(memory.api(), device) || !books().contexts.made_on(device).empty())
            mask |= driver::DeviceMask{1} << device;
    if (const auto current = driver::current_device(memory.api())) mask |= driver::DeviceMask{1} << *current;
    return mask;
}

/// The pitch that the driver was seen to give: rows begin at multiples of this.
constexpr std::size_t k_pitch_alignment = 512;

/// Says once that work in a context of the program's own cannot be waited for.
void warn_of_own_context(const driver::Api& api) {
    static std::atomic<bool> looked{false};
    if (looked.exchange(true)) return;
    const std::shared_lock contexts(books().contexts.alive);
    if (!driver::has_own_context_current(api)) return;
    log::warning("the program has a CUDA context of its own, which it must synchronize before a sleep, in a "
                 "before-sleep callback");
}

/// The contexts of `devices` in which there may be work: primary ones, the program's own that are known, and
/// the one that it works in now. They stay as long as the caller holds contexts.alive, and `primaries`.
std::vector<CUcontext> contexts_on(const driver::Api& api, driver::DeviceMask devices,
                                   const std::vector<driver::PrimaryContext>& primaries) {
    std::vector<CUcontext> contexts;
    const auto is_meant = [=](int device) { return (devices >> device & 1) != 0; };
    for (const auto& primary : primaries)
        if (is_meant(primary.device())) contexts.push_back(primary.get());
    for (auto rest = devices; rest != 0; rest &= rest - 1)
        for (auto* const own : books().contexts.made_on(std::countr_zero(rest))) contexts.push_back(own);
    CUcontext current = nullptr;
    const auto device = driver::current_device(api);
    if (device && is_meant(*device) && api.cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
        std::ranges::find(contexts, current) == contexts.end())
        contexts.push_back(current);
    return contexts;
}

/// Waits for the work that may use the allocation.
Result<void> wait_for_use(ProgramMemory& memory, driver::DeviceAddress address) {
    const auto devices = memory.devices_at(address);
    if (devices == 0) return {};
    // As the driver's own free does: nothing may still use memory that goes, and a capture must not be under
    // way. It may take long. Other devices may wait for what comes after the free.
    const auto stay = books().contexts.stay();
    if (books().captures.count() != 0)
        return make_error(ErrorCode::capture_in_progress, "a CUDA graph is being captured: nothing is freed");
    const auto& api = memory.api();
    const driver::RelaxedCaptureMode relaxed(api);
    const auto primaries = GPU_SLEEP_TRY(driver::active_contexts(api));
    driver::DrainLimits limits;
    limits.captures = Clock::now();
    limits.work = Clock::time_point::max();
    for (auto* const context : contexts_on(api, devices, primaries)) {
        auto drained = driver::drain(api, std::vector{context}, limits);
        if (drained) continue;
        if (drained.error().code != ErrorCode::context_lost) return drained;
        log::debug("freeing without waiting: {}", drained.error().message); // no work runs in a broken one
    }
    return {};
}

} // namespace

bool let_reach(ProgramMemory& memory, driver::DeviceMask devices, int owner, CUdeviceptr address) noexcept {
    bool is_new = false;
    for (; devices != 0; devices &= devices - 1) {
        const int device = std::countr_zero(devices);
        if (device == owner) continue;
        ignoring_errors([&] {
            const auto allowed = memory.allow_access(address, device);
            is_new |= allowed && *allowed;
            if (!allowed && allowed.error().code != ErrorCode::not_owned) // it may have been freed
                log::warning("GPU {} cannot be given access to {:#x}: {}", device, address,
                             allowed.error().message);
        });
    }
    return is_new;
}

Result<void> extend_reach(const driver::Api& api, LockedMemory& locked, const Import& import,
                          driver::DeviceMask devices) {
    auto& backing = *locked.ledger().find(import.at);
    if ((devices & ~backing.access) == 0) return {};
    if (backing.mapped)
        GPU_SLEEP_TRY(driver::set_access(api, import.place->span(), backing.access | devices));
    backing.access |= devices;
    books().allocations.change(import.pool ? import.given : import.at,
                               [&](Allocation& known) { known.access = backing.access; });
    return {};
}

void let_reach_imports(ProgramMemory& memory, const Pool& pool) {
    memory.with_lock([&](LockedMemory& locked) {
        auto& imports = books().imports;
        const MutexLock lock(imports.mutex);
        for (auto& import : imports.all) {
            if (import.pool.get() != &pool) continue;
            const auto reached = extend_reach(memory.api(), locked, import, pool.access);
            if (!reached) log::warning("memory of a pool cannot be reached: {}", reached.error().message);
        }
    });
}

Answer allocate(CUdeviceptr* address, std::size_t bytes, ResidualRecord& residual) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        if (!address || bytes == 0) return std::nullopt;
        free_waiting();
        const auto device = driver::current_device(memory.api());
        CUcontext context = nullptr;
        if (!device || memory.api().cuCtxGetCurrent(&context) != CUDA_SUCCESS) return std::nullopt;
        context = books().contexts.owner_of_memory_in(context);
        const auto tag = TagChoice()(bytes);
        if (!tag) {
            residual = {
                .kind = "plain", .reason = TagChoice::why_not(bytes), .device = *device, .context = context};
            return std::nullopt;
        }
        // Memory for the record is taken first: once there is a range, nothing may fail.
        auto record = make_entry<Allocations::Taken>(
            0, Allocation{.bytes = bytes, .device = *device, .context = context});
        const auto range = try_for_memory(memory, [&] { return memory.allocate(*device, *tag, bytes); });
        if (is_short(range)) memory.note_shortage(*device, bytes);
        if (!range) {
            if (is_shortage(range.error())) return CUDA_ERROR_OUT_OF_MEMORY;
            log::debug("left to the driver: {}", range.error().message);
            return std::nullopt;
        }
        record.mapped().address = *range;
        books().allocations.add(std::move(record));
        // From here on, a call that enables access finds the range in the index; access that was enabled
        // before is granted now.
        let_reach(memory, books().peers[static_cast<std::size_t>(*device)], *device, *range);
        *address = *range;
        return CUDA_SUCCESS;
    });
}

Answer allocate_pitched(CUdeviceptr* address, std::size_t* pitch, std::size_t width, std::size_t height,
                        unsigned element_bytes, ResidualRecord& residual) noexcept {
    const bool is_valid = address && pitch && width != 0 && height != 0 &&
                          (element_bytes == 4 || element_bytes == 8 || element_bytes == 16) &&
                          width < (std::size_t{1} << 40) && height < (std::size_t{1} << 40) / width;
    if (!is_valid) return std::nullopt; // the driver says what is wrong
    const auto row = round_up(width, k_pitch_alignment);
    const auto answer = allocate(address, row * height, residual);
    if (answer == CUDA_SUCCESS) *pitch = row;
    return answer;
}

Answer free(CUdeviceptr address) noexcept {
    return answered([&]() -> Answer {
        free_waiting();
        // While the record is out of the index its context must not end: it would be worked in all the same.
        const auto stay = books().contexts.stay();
        return free_known(address, [](ProgramMemory& memory, Due& due, const Allocation& allocation) {
            if (allocation.pool) books().pools.count_freed(allocation.address, allocation.bytes);
            auto status = CUDA_SUCCESS;
            ignoring_errors([&] { status = free_due(memory, due); });
            return status; // it is freed all the same, now or later
        });
    });
}

Result<driver::DeviceAddress> allocate_own(ProgramMemory& memory, int device, std::string_view tag,
                                           Bytes bytes) {
    warn_of_own_context(memory.api());
    auto record = make_entry<Allocations::Taken>(
        0, Allocation{.bytes = bytes, .device = device, .is_virtual = true, .is_own = true});
    auto address = memory.allocate(device, tag, bytes);
    if (is_short(address)) memory.note_shortage(device, bytes);
    if (!address) return address;
    record.mapped().address = *address;
    record.mapped().access = driver::DeviceMask{1} << device;
    books().allocations.add(std::move(record));
    return address;
}

Result<void> free_own(ProgramMemory& memory, driver::DeviceAddress address) {
    auto& allocations = books().allocations;
    Allocations::Taken taken;
    if (const auto known = allocations.find(address); known && known->is_own && known->address == address) {
        GPU_SLEEP_TRY(wait_for_use(memory, address));
        // The record goes first: behind the free the address may at once be somebody else's.
        taken = allocations.take(address, true, true);
    }
    if (taken.empty()) // or another thread was faster
        return make_error(ErrorCode::not_owned,
                          "{:#x} is not the start of an allocation of gpu_sleep_alloc()", address);
    auto freed = guarded([&] { return memory.free(address); });
    if (!freed) allocations.put_back(taken);
    return freed;
}

Result<void> allow_own(ProgramMemory& memory, driver::DeviceAddress address, int device) {
    GPU_SLEEP_TRY(memory.allow_access(address, device));
    books().allocations.change(address,
                               [=](Allocation& known) { known.access |= driver::DeviceMask{1} << device; });
    return {};
}

CUresult access_of(const Allocation& known, const CUmemLocation& location, CUresult status,
                   unsigned long long& flags) noexcept {
    const bool is_awake = status == CUDA_SUCCESS;
    if (!is_awake && status != CUDA_ERROR_INVALID_VALUE) return status;
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        if (!is_awake) flags = CU_MEM_ACCESS_FLAGS_PROT_NONE; // what the host may reach does not sleep
        return CUDA_SUCCESS;
    }
    if (!is_awake) {
        const auto with = memory();
        int devices = 0;
        if (!with || with->api().cuDeviceGetCount(&devices) != CUDA_SUCCESS) return status;
        if (location.id < 0 || location.id >= std::min(devices, driver::k_max_devices))
            return CUDA_ERROR_INVALID_DEVICE;
    }
    // The driver's own plain memory has none to tell of; and what is on its way back has none yet.
    if (!known.is_virtual)
        flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    else if (!is_awake || flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        flags = (known.access >> location.id & 1) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                       : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

void peer_access_enabled(CUcontext peer) noexcept {
    with_memory([&](ProgramMemory& memory) {
        const auto accessor = driver::current_device(memory.api());
        const auto owner = device_of(memory, peer);
        if (!accessor || !owner || *owner >= driver::k_max_devices || *accessor >= driver::k_max_devices)
            return;
        const auto mask = driver::DeviceMask{1} << *accessor;
        books().peers[static_cast<std::size_t>(*owner)] |= mask;
        const auto theirs = books().allocations.all(
            [&](const Allocation& a) { return a.device == *owner && !a.is_virtual && !a.pool; });
        for (const auto& allocation : theirs) let_reach(memory, mask, *owner, allocation.address);
    });
}

bool let_copies_reach(const gate::Inspector& copy) noexcept {
    bool is_new = false;
    with_memory([&](ProgramMemory& memory) {
        const driver::RelaxedCaptureMode relaxed(memory.api());
        for (const auto& span : copy.inspect().spans) {
            const auto known = books().allocations.find(span.begin);
            if (!known || known->is_virtual || known->pool)
                continue; // the program grants access to those itself
            is_new |= let_reach(memory, devices_in_use(memory), known->device, known->address);
        }
    });
    return is_new;
}

} // namespace gpu_sleep::agent::intercepted
