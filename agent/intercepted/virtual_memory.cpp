// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's own handles stay good while the driver's die at a sleep. A mapping is given to the ledger
// once it can sleep.

#include "intercepted/virtual_memory.hpp"

#include "intercepted/freeing.hpp"
#include "intercepted/rules.hpp"
#include "model/model.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace gpu_sleep::agent::intercepted {

namespace {

/// Gives it back to the driver once the program has neither it nor a mapping of it.
void release_if_unused(ProgramMemory& memory, Handles& all, const Handle& handle)
    GPU_SLEEP_REQUIRES(all.mutex) {
    if (handle.references != 0 || !handle.mappings.empty()) return;
    memory.api().cuMemRelease(handle.real);
    all.erase(handle);
}

/// As answered_with_memory(), under the mutexes of with_handles().
template <class Body>
Answer answered_with_handles(const Body& body) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) {
        return memory.with_lock([&](LockedMemory& locked) GPU_SLEEP_UNCHECKED { // as there
            auto& all = books().handles;
            const MutexLock lock(all.mutex);
            return body(memory, locked, all);
        });
    });
}

/// Whether the mapping's contents are kept elsewhere, and its handle has no memory.
bool sleeps(const LockedMemory& memory, const Mapping& mapping) {
    const auto* const backing = mapping.in_ledger ? memory.ledger().find(mapping.address) : nullptr;
    return backing && backing->is_asleep();
}

bool any_sleeps(const LockedMemory& memory, const std::vector<Mapping*>& mappings) {
    return std::ranges::any_of(mappings, [&](const auto* mapping) { return sleeps(memory, *mapping); });
}

/// Takes a mapping, which is awake, out of the ledger; its handle knows the driver's again. From then on
/// nobody asks here who has it, too: exported, it stays for good.
void take_from_ledger(LockedMemory& memory, Mapping& mapping) {
    if (!mapping.in_ledger) return;
    auto& handle = *mapping.handle;
    if (auto* const with = intercepted::memory(); with && handle.is_exported) {
        with->shared_ranges().withdraw(handle.number).end();
        if (!handle.stay_reason) handle.stay_reason = k_exported;
    }
    if (handle.import) books().imports.take(mapping.address);
    const auto removed = memory.remove_mapping(mapping.address);
    mapping.in_ledger = false;
    handle.real = removed.handle;
    handle.host_backed = removed.host_backed;
    static_cast<void>(books().allocations.take(mapping.address, true));
}

/// Unless it sleeps, the handle's memory stays where it is from now on; `reason` says why.
void make_stay(LockedMemory& memory, Handle& handle, const char* reason) {
    if (any_sleeps(memory, handle.mappings)) return;
    for (auto* const mapping : handle.mappings) take_from_ledger(memory, *mapping);
    if (!handle.stay_reason) handle.stay_reason = reason;
}

/// Lets others ask for what is mapped, which the ledger has: it stays unless all of them go to sleep.
void share_mapping(LockedMemory& memory, const Mapping& mapping) {
    memory.make_stay(mapping.address, k_exported, true);
    const auto& backing = *memory.ledger().find(mapping.address);
    const auto number = mapping.handle->number;
    if (auto* const with = intercepted::memory())
        with->shared_ranges().add(number, {.allocation = number,
                                           .handle = backing.handle,
                                           .bytes = backing.bytes,
                                           .place = mapping.address,
                                           .reason = k_exported,
                                           .by_descriptor = true});
}

/// A record of memory that the ledger is to have, where it is imported.
std::list<Import> draft_import(const Mapping& mapping) {
    std::list<Import> made;
    if (const auto& source = mapping.handle->import)
        made.push_back({source->from, source->asked, mapping.address});
    return made;
}

/// Gives a mapping to the ledger once it is one that can sleep, and takes it back once it cannot. What is
/// imported needs no choice of a tag.
void hand_to_ledger(LockedMemory& memory, Mapping& mapping, const TagChoice* choose_tag) {
    const auto& handle = *mapping.handle;
    const auto address = mapping.address;
    if (why_it_stays(handle, &mapping)) return take_from_ledger(memory, mapping);
    const int device = copying_device(handle, mapping.access);
    if (mapping.in_ledger) {
        auto& known = *memory.ledger().find(address);
        known.access = mapping.access;
        known.device = device;
        books().allocations.change(address, [&](Allocation& each) { each.access = mapping.access; });
        return;
    }
    const auto tag = choose_tag && !handle.import ? (*choose_tag)(mapping.bytes)
                                                  : std::optional<std::string>(model::k_default_tag);
    if (!tag) return;
    auto import = draft_import(mapping); // what takes memory comes first
    const auto handle_types = static_cast<unsigned long long>(handle.properties.requestedHandleTypes);
    auto record = make_entry<Allocations::Taken>(address, Allocation{.address = address,
                                                                     .bytes = mapping.bytes,
                                                                     .device = device,
                                                                     .is_virtual = true,
                                                                     .access = mapping.access,
                                                                     .handle_types = handle_types});
    ledger::Backing backing; // from now on it can sleep, and its handle may change
    backing.address = address;
    backing.bytes = backing.allocated = mapping.bytes;
    backing.tag = memory.ledger().tag_id(*tag);
    backing.device = device;
    backing.access = mapping.access;
    backing.mapped = true;
    backing.handle = handle.real;
    backing.host_backed = handle.host_backed;
    backing.imported = handle.import.has_value();
    backing.stay_reason = handle.import ? k_of_another_process : nullptr;
    memory.ledger().add(std::move(backing));
    mapping.in_ledger = true;
    books().imports.add(std::move(import));
    books().allocations.add(std::move(record));
    if (handle.is_exported) share_mapping(memory, mapping);
}

/// Notes what the driver did to the access to a mapping. A span's grant ends at its first hole: where that
/// may lie before the mapping, `is_reached` false, the driver is asked, who alone knows of all that is
/// mapped.
void note_grant(const driver::Api& api, Mapping& mapping, const CUmemAccessDesc& granted, bool is_reached) {
    unsigned long long flags = granted.flags;
    const bool is_known =
        is_reached || api.cuMemGetAccess(&flags, &granted.location, mapping.address) == CUDA_SUCCESS;
    if (!is_known || !is_device(granted.location) || flags == CU_MEM_ACCESS_FLAGS_PROT_READ)
        mapping.has_other_access = true; // it stays, as it is
    else
        note_access(mapping.access, granted.location.id, flags);
}

/// Takes a mapping, which the driver has unmapped, out of the books.
void forget_mapping(ProgramMemory& memory, LockedMemory& locked, Handles& all, Mapping& mapping)
    GPU_SLEEP_REQUIRES(all.mutex) {
    auto& handle = *mapping.handle;
    take_from_ledger(locked, mapping);
    std::erase(handle.mappings, &mapping);
    all.mappings.erase(mapping.address);
    release_if_unused(memory, all, handle);
}

/// Unmaps what map_loose_imports() has mapped, unless it sleeps.
void unmap_from_own_place(ProgramMemory& memory, LockedMemory& locked, Handles& all, Handle& handle)
    GPU_SLEEP_REQUIRES(all.mutex) {
    if (!handle.place || any_sleeps(locked, handle.mappings)) return;
    const auto unmapped = guarded([&] { return driver::unmap(memory.api(), handle.place->span()); });
    if (!unmapped) return; // whoever comes next tries again
    const auto place = *std::exchange(handle.place, std::nullopt);
    forget_mapping(memory, locked, all, all.mappings.at(place.span().address));
}

/// The mappings that lie in [address, address + bytes).
std::vector<Mapping*> mappings_in(Handles& all, CUdeviceptr address, Bytes bytes)
    GPU_SLEEP_REQUIRES(all.mutex) {
    std::vector<Mapping*> found;
    for (auto at = all.mappings.lower_bound(address); at != all.mappings.end() && at->first < address + bytes;
         ++at)
        found.push_back(&at->second);
    return found;
}

} // namespace

std::optional<CUmemGenericAllocationHandle> real_handle(const LockedMemory& memory, const Handle& handle) {
    for (const auto* const mapping : handle.mappings) {
        const auto* const backing = mapping->in_ledger ? memory.ledger().find(mapping->address) : nullptr;
        if (backing) return backing->is_asleep() ? std::nullopt : std::optional(backing->handle);
    }
    return handle.real;
}

std::optional<CUmemGenericAllocationHandle> real_handle_of(CUmemGenericAllocationHandle handle) noexcept {
    std::optional real = handle;
    with_handles([&](const LockedMemory& locked, Handles& all) GPU_SLEEP_REQUIRES(all.mutex) {
        if (const auto* mine = all.find(handle)) real = real_handle(locked, *mine);
    });
    return real;
}

void make_handle_stay(CUmemGenericAllocationHandle handle, const char* reason) noexcept {
    with_handles([&](LockedMemory& locked, Handles& all) GPU_SLEEP_REQUIRES(all.mutex) {
        if (auto* mine = all.find(handle))
            make_stay(locked, *mine, reason);
        else if (reason == k_exported)
            books().residual.handle_shared(handle, reason);
    });
}

void share_handle(LockedMemory& memory, const Handle& handle) {
    for (const auto* const mapping : handle.mappings)
        if (mapping->in_ledger) share_mapping(memory, *mapping);
}

Result<driver::VaReservation> map_at_own_place(const driver::Api& api, Bytes bytes,
                                               driver::PhysicalMemory::Handle handle,
                                               driver::DeviceMask access) {
    auto place = driver::VaReservation::create(api, bytes);
    if (!place) return place;
    const auto span = place->span();
    GPU_SLEEP_TRY(driver::map(api, span, handle));
    auto granted = driver::set_access(api, span, access);
    if (granted) return place;
    static_cast<void>(driver::unmap(api, span));
    return std::move(granted).error();
}

Answer create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* properties,
              unsigned long long flags) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        if (!handle || !properties || !is_device(properties->location)) return std::nullopt;
        // Memory for the record is taken first: once the driver has made the handle, nothing may fail.
        auto made = make_entry<Handles::ByNumber>();
        auto& mine = made.mapped();
        const auto status = try_for_memory(
            memory, [&] { return memory.api().cuMemCreate(&mine.real, bytes, properties, flags); });
        if (is_short(status)) memory.note_shortage(properties->location.id, bytes);
        if (status != CUDA_SUCCESS) return status;
        mine.bytes = bytes;
        mine.properties = *properties;
        mine.references = 1;
        mine.stay_reason = why_it_stays(*properties);
        auto& all = books().handles;
        const MutexLock lock(all.mutex);
        *handle = all.add(std::move(made));
        return CUDA_SUCCESS;
    });
}

Answer release(CUmemGenericAllocationHandle handle) noexcept {
    return answered([&]() -> Answer {
        const auto with = memory();
        if (!with) return handle >= k_first_handle ? Answer(CUDA_SUCCESS) : std::nullopt;
        auto& all = books().handles;
        const MutexLock lock(all.mutex);
        auto* mine = all.find(handle);
        if (!mine) return std::nullopt;
        if (mine->references == 0) return CUDA_ERROR_INVALID_VALUE;
        --mine->references;
        release_if_unused(*with, all, *mine);
        return CUDA_SUCCESS;
    });
}

Answer retain_handle(CUmemGenericAllocationHandle* handle, const void* address) noexcept {
    return answered_with_memory([&](ProgramMemory&) -> Answer {
        if (!handle) return std::nullopt;
        const auto at = reinterpret_cast<CUdeviceptr>(address);
        // There is no handle of our own memory, as there is none of the driver's plain memory.
        const auto none = books().allocations.find(at) ? Answer(CUDA_ERROR_INVALID_VALUE) : std::nullopt;
        auto& all = books().handles;
        const MutexLock lock(all.mutex);
        auto after = all.mappings.upper_bound(at);
        if (after == all.mappings.begin()) return none;
        const auto& [start, mapping] = *std::prev(after);
        if (at - start >= mapping.bytes) return none;
        ++mapping.handle->references;
        *handle = mapping.handle->number;
        return CUDA_SUCCESS;
    });
}

Answer properties_of(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) noexcept {
    return answered_with_memory([&](ProgramMemory&) -> Answer {
        if (!properties) return std::nullopt;
        auto& all = books().handles;
        const MutexLock lock(all.mutex);
        const auto* mine = all.find(handle);
        if (!mine) return std::nullopt;
        *properties = mine->properties;
        return CUDA_SUCCESS;
    });
}

void add_mappings_of(CUmemGenericAllocationHandle handle, gate::Named& named) {
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    const auto* mine = all.find(handle);
    if (!mine) return;
    for (const auto* const mapping : mine->mappings)
        named.spans.push_back({mapping->address, mapping->address + mapping->bytes});
}

Answer map(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
           unsigned long long flags) noexcept {
    return answered_with_handles([&](ProgramMemory& memory, LockedMemory& locked,
                                     Handles& all) GPU_SLEEP_REQUIRES(all.mutex) -> Answer {
        auto* mine = all.find(handle);
        if (!mine) return std::nullopt;
        unmap_from_own_place(memory, locked, all, *mine);
        mine = all.find(handle); // which may have waited for that to be released
        if (!mine) return CUDA_ERROR_INVALID_VALUE;
        const auto real = real_handle(locked, *mine);
        if (!real) return k_sleeps;
        // Memory for the record is taken first: once the driver has mapped it, nothing may fail.
        auto made = make_entry<Handles::ByAddress>();
        made.mapped() = {.bytes = bytes, .offset = offset, .handle = mine};
        mine->mappings.reserve(mine->mappings.size() + 1);
        const auto status = memory.api().cuMemMap(address, bytes, offset, *real, flags);
        if (status != CUDA_SUCCESS) return status;
        if (!mine->mappings.empty()) make_stay(locked, *mine, "mapped at several addresses");
        all.add(address, std::move(made));
        return CUDA_SUCCESS;
    });
}

Answer set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* grants,
                  std::size_t count) noexcept {
    return answered([&] {
        const TagChoice choose_tag;
        return answered_with_handles([&](ProgramMemory& memory, LockedMemory& locked,
                                         Handles& all) GPU_SLEEP_REQUIRES(all.mutex) -> Answer {
            const auto found = mappings_in(all, address, bytes);
            if (found.empty()) return std::nullopt;
            if (any_sleeps(locked, found)) return k_sleeps;
            const auto status = memory.api().cuMemSetAccess(address, bytes, grants, count);
            if (status != CUDA_SUCCESS) return status;
            auto reached = address; // without a hole
            for (auto* const mapping : found) {
                const bool is_reached = mapping->address == reached;
                if (is_reached) reached += mapping->bytes;
                for (const auto& granted : std::span(grants, count))
                    note_grant(memory.api(), *mapping, granted, is_reached);
                hand_to_ledger(locked, *mapping, &choose_tag);
            }
            return CUDA_SUCCESS;
        });
    });
}

Answer unmap(CUdeviceptr address, std::size_t bytes) noexcept {
    const auto unmap_whole = [&](ProgramMemory& memory, LockedMemory& locked, Handles& all)
                                 GPU_SLEEP_REQUIRES(all.mutex) -> Answer {
        const auto found = mappings_in(all, address, bytes);
        if (found.empty()) return std::nullopt;
        if (any_sleeps(locked, found)) return k_sleeps;
        const auto status = memory.api().cuMemUnmap(address, bytes);
        if (status != CUDA_SUCCESS) return status;
        for (auto* const mapping : found) forget_mapping(memory, locked, all, *mapping);
        return CUDA_SUCCESS;
    };
    return answered_with_handles(unmap_whole);
}

void map_loose_imports(ProgramMemory& memory) {
    with_handles([&](LockedMemory& locked, Handles& all) GPU_SLEEP_REQUIRES(all.mutex) {
        for (auto& [number, handle] : all.handles) {
            if (!handle.import || !handle.mappings.empty() || handle.stay_reason) continue;
            const auto access = driver::DeviceMask{1} << handle.imported_on;
            auto made = make_entry<Handles::ByAddress>(); // what takes memory comes first
            made.mapped() = {.bytes = handle.bytes, .handle = &handle, .access = access};
            handle.mappings.reserve(1);
            auto place = map_at_own_place(memory.api(), handle.bytes, handle.real, access);
            if (!place) continue; // then it stays
            handle.place = *std::move(place);
            hand_to_ledger(locked, all.add(handle.place->span().address, std::move(made)), nullptr);
        }
    });
}

void unmap_loose_imports(ProgramMemory& memory, LockedMemory& locked) noexcept {
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    for (auto at = all.handles.begin(); at != all.handles.end();)
        unmap_from_own_place(memory, locked, all, at++->second); // which may be its end
}

void adopt_mapping(LockedMemory& locked, CUdeviceptr address) noexcept {
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    const auto mapping = all.mappings.find(address);
    if (mapping == all.mappings.end()) return;
    auto& handle = *mapping->second.handle;
    handle.import.reset();
    handle.properties.location.id = locked.ledger().find(address)->device;
    static_cast<void>(books().imports.take(address));
}

bool has_mappings_in(CUdeviceptr address, std::size_t bytes) noexcept {
    if (!memory()) return false; // the process is ending: the driver alone knows what is mapped
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    const auto at = all.mappings.lower_bound(address);
    return at != all.mappings.end() && at->first < address + bytes;
}

bool own_mappings_sleep() noexcept {
    bool any = false;
    with_handles([&](const LockedMemory& locked, Handles& all) GPU_SLEEP_REQUIRES(all.mutex) {
        any =
            std::ranges::any_of(all.mappings, [&](const auto& each) { return sleeps(locked, each.second); });
    });
    return any;
}

CUresult use_handle(CUmemGenericAllocationHandle handle, const char* reason,
                    const std::function<CUresult(CUmemGenericAllocationHandle)>& use) noexcept {
    const auto real = real_handle_of(handle);
    if (!real) return k_sleeps;
    const auto status = use(*real);
    if (status == CUDA_SUCCESS) make_handle_stay(handle, reason);
    return status;
}

CUresult map_arrays(const CUarrayMapInfo* maps, unsigned count,
                    const std::function<CUresult(CUarrayMapInfo*)>& map) noexcept {
    std::vector<CUarrayMapInfo> ours;
    const auto copied = guarded([&] { ours.assign(maps, maps + count); });
    if (!copied) return CUDA_ERROR_OUT_OF_MEMORY;
    for (auto& each : ours) {
        if (each.memHandleType != CU_MEM_HANDLE_TYPE_GENERIC) continue;
        const auto real = real_handle_of(each.memHandle.memHandle);
        if (!real) return k_sleeps;
        each.memHandle.memHandle = *real;
    }
    const auto status = map(ours.data());
    for (unsigned i = 0; status == CUDA_SUCCESS && i < count; ++i)
        if (maps[i].memHandleType == CU_MEM_HANDLE_TYPE_GENERIC)
            make_handle_stay(maps[i].memHandle.memHandle, "mapped into a sparse array");
    return status;
}

void make_span_stay(CUdeviceptr address, std::size_t bytes, const char* reason) noexcept {
    with_handles([&](LockedMemory& locked, Handles& all) GPU_SLEEP_REQUIRES(all.mutex) {
        for (auto at = address; at < address + bytes;) {
            const auto* const backing = locked.ledger().find(at);
            if (!backing) break;
            const auto begin = backing->address;
            at = backing->end();
            const auto mapping = all.mappings.find(begin);
            if (mapping == all.mappings.end())
                locked.make_stay(begin, reason);
            else
                make_stay(locked, *mapping->second.handle, reason);
        }
    });
}

void add_handles_that_stay(std::vector<Residual>& sums) {
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    for (const auto& [number, handle] : all.handles) {
        const auto* const mapping = handle.mappings.empty() ? nullptr : handle.mappings.front();
        if (mapping && mapping->in_ledger) continue;
        const auto* reason = handle.import        ? k_of_another_process
                             : handle.is_exported ? k_exported
                                                  : why_it_stays(handle, mapping);
        if (!reason) reason = TagChoice::why_not(handle.bytes);
        const auto* const kind = handle.host_backed ? model::k_residual_of_host
                                 : handle.import && !mapping && !handle.stay_reason ? k_shared
                                                                                    : "virtual";
        add_to_sum(sums, {kind, handle.properties.location.id, handle.bytes, 1, reason});
    }
}

} // namespace gpu_sleep::agent::intercepted
