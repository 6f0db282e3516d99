// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's own virtual memory: its handles stay good while the driver's die at a sleep.

#include "caught/residual.hpp"
#include "caught/share.hpp"
#include "caught/state.hpp"

#include <algorithm>
#include <map>
#include <mutex>

namespace gpu_sleep::agent::caught {
namespace {

using driver::DeviceMask;

struct Mapping {
    Bytes bytes = 0;
    Bytes offset = 0;
    std::uint64_t handle = 0; ///< the program's
    DeviceMask access = 0;
    bool has_other_access = false; ///< of the host, or for reading only
    bool enlisted = false;         ///< the ledger has it, and its driver handle
};

struct Handle {
    CUmemGenericAllocationHandle real = 0; ///< the driver's, unless the ledger has it
    Bytes bytes = 0;
    CUmemAllocationProp properties{};
    unsigned references = 0;
    std::vector<CUdeviceptr> mappings;
    const char* pinned = nullptr; ///< why it has to stay
};

/// Its mutex comes after the memory's, which a sleep holds for long: who asks about handles, or has one
/// without a mapping, which the ledger does not know, needs this one alone.
struct Handles {
    std::mutex mutex; ///< guards all below
    std::map<std::uint64_t, Handle> handles;
    std::map<CUdeviceptr, Mapping> mappings;
    std::uint64_t next = 0;
    static Handles& instance() {
        static auto* const all = new Handles;
        return *all;
    }
};

/// Numbers that no handle of the driver was seen to have, so that a stray one is noticed.
constexpr std::uint64_t k_first_handle = 0x6770'0000'0000'0000;

Handle* find_handle(Handles& all, std::uint64_t number) {
    const auto found = all.handles.find(number);
    return found == all.handles.end() ? nullptr : &found->second;
}

/// Why memory of these properties cannot be made again as it was; null when it can.
const char* why_pinned(const CUmemAllocationProp& properties) {
    if (properties.allocFlags.compressionType != CU_MEM_ALLOCATION_COMP_NONE) return "compressible memory";
    if (properties.allocFlags.usage != 0) return "memory for sparse arrays";
    constexpr unsigned k_understood = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if ((static_cast<unsigned>(properties.requestedHandleTypes) & ~k_understood) != 0)
        return "made to be shared through the fabric";
    return nullptr;
}

/// Whether the mapping's contents are kept elsewhere, and its handle has no memory.
bool sleeps(const Agent::Memory& memory, CUdeviceptr address, const Mapping& mapping) {
    const auto* backing = mapping.enlisted ? memory.ledger.find(address) : nullptr;
    return backing && backing->is_asleep();
}

bool any_sleeps(const Agent::Memory& memory, const Handles& all, const std::vector<CUdeviceptr>& mappings) {
    return std::any_of(mappings.begin(), mappings.end(),
                       [&](CUdeviceptr at) { return sleeps(memory, at, all.mappings.at(at)); });
}

/// Takes a mapping out of the ledger; its handle knows the driver's again. False when it sleeps: then it
/// stays, for the ledger alone knows where its contents are.
bool strike_off(const Agent::Memory& memory, Handles& all, CUdeviceptr address, Mapping& mapping) {
    if (!mapping.enlisted) return true;
    if (sleeps(memory, address, mapping)) return false;
    auto backing = memory.ledger.remove(address);
    memory.vaults.forget(backing.kept);
    mapping.enlisted = false;
    if (auto* handle = find_handle(all, mapping.handle)) handle->real = backing.handle;
    static_cast<void>(Allocations::instance().take(address));
    return true;
}

/// False when it sleeps: then nothing changes.
bool pin(const Agent::Memory& memory, Handles& all, Handle& handle, const char* reason) {
    if (any_sleeps(memory, all, handle.mappings)) return false;
    for (const auto address : handle.mappings) strike_off(memory, all, address, all.mappings.at(address));
    if (!handle.pinned) handle.pinned = reason;
    return true;
}

/// Gives a mapping to the ledger once it is one that can sleep: the only one of its handle, whole, and open
/// to its own device, for otherwise nobody can copy it.
void enlist(const Agent::Memory& memory, Handles& all, CUdeviceptr address, Mapping& mapping,
            const TagChoice& choose_tag) {
    auto* handle = find_handle(all, mapping.handle);
    if (!handle || handle->pinned) return;
    const auto device = handle->properties.location.id;
    const bool can_sleep = handle->mappings.size() == 1 && mapping.offset == 0 &&
                           mapping.bytes == handle->bytes && !mapping.has_other_access &&
                           (mapping.access >> device & 1) != 0;
    if (!can_sleep) {
        strike_off(memory, all, address, mapping);
        return;
    }
    if (mapping.enlisted) {
        memory.ledger.find(address)->access = mapping.access;
        Allocations::instance().change(address, [&](Known& known) { known.access = mapping.access; });
        return;
    }
    const auto tag = choose_tag(mapping.bytes);
    if (!tag) return;
    ledger::Backing backing;
    backing.address = address;
    backing.bytes = mapping.bytes;
    backing.allocated = mapping.bytes;
    backing.tag = memory.ledger.tag_id(*tag);
    backing.device = device;
    backing.access = mapping.access;
    backing.mapped = true;
    backing.handle = handle->real;
    memory.ledger.add(std::move(backing));
    mapping.enlisted = true;
    Allocations::instance().add(
        {address, mapping.bytes, device, nullptr, nullptr, 0, true, false, mapping.access});
}

void release_if_unused(const Agent::Memory& memory, Handles& all, std::uint64_t number) {
    auto* handle = find_handle(all, number);
    if (!handle || handle->references != 0 || !handle->mappings.empty()) return;
    memory.api.cuMemRelease(handle->real);
    all.handles.erase(number);
}

/// The mappings that lie in [address, address + bytes).
std::vector<CUdeviceptr> mappings_in(const Handles& all, CUdeviceptr address, Bytes bytes) {
    std::vector<CUdeviceptr> found;
    for (auto at = all.mappings.lower_bound(address); at != all.mappings.end() && at->first < address + bytes;
         ++at)
        found.push_back(at->first);
    return found;
}

} // namespace

Answer create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* properties,
              unsigned long long flags) noexcept {
    return answered([&]() -> Answer {
        const auto with = memory();
        if (!with || !handle || !properties || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            properties->location.id < 0 || properties->location.id >= driver::k_max_devices)
            return std::nullopt;
        CUmemGenericAllocationHandle made = 0;
        auto status = with->api.cuMemCreate(&made, bytes, properties, flags);
        if (status == CUDA_ERROR_OUT_OF_MEMORY) {
            trim();
            status = with->api.cuMemCreate(&made, bytes, properties, flags);
        }
        if (status != CUDA_SUCCESS) return status;
        auto& all = Handles::instance();
        const std::lock_guard lock(all.mutex);
        const auto number = k_first_handle + ++all.next;
        Handle mine;
        mine.real = made;
        mine.bytes = bytes;
        mine.properties = *properties;
        mine.references = 1;
        mine.pinned = why_pinned(*properties);
        all.handles.emplace(number, std::move(mine));
        *handle = number;
        return CUDA_SUCCESS;
    });
}

Answer release(CUmemGenericAllocationHandle handle) noexcept {
    return answered([&]() -> Answer {
        const auto with = memory();
        if (!with) return handle >= k_first_handle ? Answer(CUDA_SUCCESS) : std::nullopt;
        auto& all = Handles::instance();
        const std::lock_guard lock(all.mutex);
        auto* mine = find_handle(all, handle);
        if (!mine) return std::nullopt;
        if (mine->references == 0) return CUDA_ERROR_INVALID_VALUE;
        --mine->references;
        release_if_unused(*with, all, handle);
        return CUDA_SUCCESS;
    });
}

Answer map(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
           unsigned long long flags) noexcept {
    return answered([&]() -> Answer {
        const auto with = memory();
        if (!with) return std::nullopt;
        auto& all = Handles::instance();
        const std::lock_guard memory_lock(with->mutex);
        const std::lock_guard lock(all.mutex);
        auto* mine = find_handle(all, handle);
        if (!mine) return std::nullopt;
        if (!mine->mappings.empty() && !pin(*with, all, *mine, "mapped at several addresses"))
            return k_sleeps;
        const auto status = with->api.cuMemMap(address, bytes, offset, mine->real, flags);
        if (status != CUDA_SUCCESS) return status;
        Mapping mapping;
        mapping.bytes = bytes;
        mapping.offset = offset;
        mapping.handle = handle;
        all.mappings.emplace(address, mapping);
        mine->mappings.push_back(address);
        return CUDA_SUCCESS;
    });
}

Answer set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* grants,
                  std::size_t count) noexcept {
    return answered([&]() -> Answer {
        const auto with = memory();
        if (!with) return std::nullopt;
        const TagChoice choose_tag;
        auto& all = Handles::instance();
        const std::lock_guard memory_lock(with->mutex);
        const std::lock_guard lock(all.mutex);
        const auto found = mappings_in(all, address, bytes);
        if (found.empty()) return std::nullopt;
        if (any_sleeps(*with, all, found)) return k_sleeps;
        const auto status = with->api.cuMemSetAccess(address, bytes, grants, count);
        if (status != CUDA_SUCCESS) return status;
        for (const auto at : found) {
            auto& mapping = all.mappings.at(at);
            for (std::size_t i = 0; i < count; ++i) {
                const auto& granted = grants[i];
                const bool of_device = granted.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                                       granted.location.id >= 0 &&
                                       granted.location.id < driver::k_max_devices;
                if (!of_device || granted.flags == CU_MEM_ACCESS_FLAGS_PROT_READ) {
                    mapping.has_other_access = true;
                    continue;
                }
                const auto bit = DeviceMask{1} << granted.location.id;
                const bool is_granted = granted.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
                mapping.access = is_granted ? mapping.access | bit : mapping.access & ~bit;
            }
            enlist(*with, all, at, mapping, choose_tag);
        }
        return CUDA_SUCCESS;
    });
}

Answer unmap(CUdeviceptr address, std::size_t bytes) noexcept {
    return answered([&]() -> Answer {
        const auto with = memory();
        if (!with) return std::nullopt;
        auto& all = Handles::instance();
        const std::lock_guard memory_lock(with->mutex);
        const std::lock_guard lock(all.mutex);
        const auto found = mappings_in(all, address, bytes);
        if (found.empty()) return std::nullopt;
        if (any_sleeps(*with, all, found)) return k_sleeps;
        const auto status = with->api.cuMemUnmap(address, bytes);
        if (status != CUDA_SUCCESS) return status;
        for (const auto at : found) {
            auto& mapping = all.mappings.at(at);
            strike_off(*with, all, at, mapping);
            const auto number = mapping.handle;
            all.mappings.erase(at);
            if (auto* mine = find_handle(all, number)) std::erase(mine->mappings, at);
            release_if_unused(*with, all, number);
        }
        return CUDA_SUCCESS;
    });
}

Answer retain_handle(CUmemGenericAllocationHandle* handle, const void* address) noexcept {
    return answered([&]() -> Answer {
        const auto with = memory();
        if (!with || !handle) return std::nullopt;
        const auto known = Allocations::instance().find(reinterpret_cast<CUdeviceptr>(address));
        if (known && !known->is_virtual)
            return CUDA_ERROR_INVALID_VALUE; // as of the driver's own plain memory
        auto& all = Handles::instance();
        const std::lock_guard lock(all.mutex);
        const auto at = reinterpret_cast<CUdeviceptr>(address);
        auto after = all.mappings.upper_bound(at);
        if (after == all.mappings.begin()) return std::nullopt;
        const auto& [start, mapping] = *std::prev(after);
        if (at - start >= mapping.bytes) return std::nullopt;
        auto* mine = find_handle(all, mapping.handle);
        if (!mine) return std::nullopt;
        ++mine->references;
        *handle = mapping.handle;
        return CUDA_SUCCESS;
    });
}

Answer properties_of(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) noexcept {
    return answered([&]() -> Answer {
        const auto with = memory();
        if (!with || !properties) return std::nullopt;
        auto& all = Handles::instance();
        const std::lock_guard lock(all.mutex);
        const auto* mine = find_handle(all, handle);
        if (!mine) return std::nullopt;
        *properties = mine->properties;
        return CUDA_SUCCESS;
    });
}

void add_mappings_of(CUmemGenericAllocationHandle handle, gate::Named& named) {
    auto& all = Handles::instance();
    const std::lock_guard lock(all.mutex);
    const auto* mine = find_handle(all, handle);
    if (!mine) return;
    for (const auto at : mine->mappings) named.spans.push_back({at, at + all.mappings.at(at).bytes});
}

std::optional<CUmemGenericAllocationHandle> real_handle_for(CUmemGenericAllocationHandle handle,
                                                            const char* reason) noexcept {
    std::optional real = handle;
    noted([&] {
        const auto with = memory();
        if (!with) return;
        auto& all = Handles::instance();
        const std::lock_guard memory_lock(with->mutex);
        const std::lock_guard lock(all.mutex);
        auto* mine = find_handle(all, handle);
        if (!mine) return;
        real.reset();
        if (pin(*with, all, *mine, reason)) real = mine->real;
    });
    return real;
}

CUresult map_arrays(const CUarrayMapInfo* maps, unsigned count,
                    const std::function<CUresult(CUarrayMapInfo*)>& map) noexcept {
    std::vector<CUarrayMapInfo> ours;
    const auto copied = guarded([&]() -> Result<void> {
        ours.assign(maps, maps + count);
        return {};
    });
    if (!copied) return CUDA_ERROR_OUT_OF_MEMORY;
    for (auto& each : ours)
        if (each.memHandleType == CU_MEM_HANDLE_TYPE_GENERIC) {
            const auto driver_handle =
                real_handle_for(each.memHandle.memHandle, "mapped into a sparse array");
            if (!driver_handle) return k_sleeps;
            each.memHandle.memHandle = *driver_handle;
        }
    return map(ours.data());
}

bool pin_span(CUdeviceptr address, std::size_t bytes, const char* reason) noexcept {
    bool is_done = true;
    noted([&] {
        const auto with = memory();
        if (!with) return;
        auto& all = Handles::instance();
        const std::lock_guard memory_lock(with->mutex);
        const std::lock_guard lock(all.mutex);
        const auto for_each = [&](const auto& body) {
            for (auto at = address; at < address + bytes;) {
                auto* backing = with->ledger.find(at);
                if (!backing) break;
                at = backing->end();
                body(*backing);
            }
        };
        for_each([&](const ledger::Backing& backing) { is_done &= !backing.is_asleep(); });
        if (!is_done) return;
        for_each([&](ledger::Backing& backing) {
            const auto mapping = all.mappings.find(backing.address);
            auto* const handle =
                mapping == all.mappings.end() ? nullptr : find_handle(all, mapping->second.handle);
            if (handle)
                pin(*with, all, *handle, reason);
            else if (!backing.pinned)
                backing.pinned = reason;
        });
    });
    return is_done;
}

bool own_mappings_sleep() noexcept {
    const auto with = memory();
    if (!with) return false;
    const std::lock_guard lock(with->mutex);
    const auto& mappings = Handles::instance().mappings;
    return std::any_of(mappings.begin(), mappings.end(),
                       [&](const auto& mapping) { return sleeps(*with, mapping.first, mapping.second); });
}

void note_own(CUdeviceptr address, std::size_t bytes, int device) noexcept {
    noted([&] {
        Allocations::instance().add(
            {address, bytes, device, nullptr, nullptr, 0, true, false, DeviceMask{1} << device});
    });
}

void own_allowed(CUdeviceptr address, int device) noexcept {
    noted([&] {
        Allocations::instance().change(address,
                                       [&](Known& known) { known.access |= DeviceMask{1} << device; });
    });
}

void forget_own(CUdeviceptr address) noexcept {
    noted([&] { static_cast<void>(Allocations::instance().take(address)); });
}

void add_pinned_handles(std::vector<Residual>& rows) {
    const auto with = memory();
    if (!with) return;
    for (const auto& [address, backing] : with->ledger.backings())
        if (backing.pinned)
            rows.push_back({backing.pinned == k_shared_by_ipc ? "ipc" : "pinned", backing.device,
                            backing.bytes, 1, backing.pinned});
    auto& all = Handles::instance();
    const std::lock_guard lock(all.mutex);
    for (const auto& [number, handle] : all.handles) {
        const bool is_enlisted = std::any_of(handle.mappings.begin(), handle.mappings.end(),
                                             [&](CUdeviceptr at) { return all.mappings.at(at).enlisted; });
        if (is_enlisted) continue;
        const char* reason = handle.pinned ? handle.pinned
                             : handle.mappings.empty()
                                 ? "made, but not mapped"
                                 : "mapped in part, or without access for its own device";
        rows.push_back({"virtual", handle.properties.location.id, handle.bytes, 1, reason});
    }
}

} // namespace gpu_sleep::agent::caught
