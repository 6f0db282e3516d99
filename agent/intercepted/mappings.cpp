// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the program maps itself: given to the ledger once it can sleep.

#include "intercepted/mappings.hpp"

#include "base/thread_safety.hpp"
#include "intercepted/allocations.hpp"
#include "intercepted/handle_table.hpp"
#include "intercepted/rules.hpp"
#include "intercepted/state.hpp"

#include <algorithm>
#include <utility>

namespace gpu_sleep::agent::intercepted {
namespace {

using driver::DeviceMask;

/// Gives a mapping to the ledger once it is one that can sleep: the only one of its handle, whole, and open
/// to its own device, for otherwise nobody can copy it.
void hand_to_ledger(LockedMemory& memory, Handles& all, CUdeviceptr address, Mapping& mapping,
                    const TagChoice& choose_tag) GPU_SLEEP_REQUIRES(all.mutex) {
    const auto* const handle = find_handle(all, mapping.handle);
    if (!handle || handle->stay_reason) return;
    const auto device = handle->properties.location.id;
    const bool can_sleep = handle->mappings.size() == 1 && mapping.offset == 0 &&
                           mapping.bytes == handle->bytes && !mapping.has_other_access &&
                           (mapping.access >> device & 1) != 0;
    if (!can_sleep) {
        take_from_ledger(memory, all, address, mapping);
        return;
    }
    if (mapping.in_ledger) {
        memory.ledger().find(address)->access = mapping.access;
        immortal<Allocations>().change(address, [&](Allocation& known) { known.access = mapping.access; });
        return;
    }
    const auto tag = choose_tag(mapping.bytes);
    if (!tag) return;
    ledger::Backing backing; // from now on it can sleep, and its handle may change
    backing.address = address;
    backing.bytes = mapping.bytes;
    backing.allocated = mapping.bytes;
    backing.tag = memory.ledger().tag_id(*tag);
    backing.device = device;
    backing.access = mapping.access;
    backing.mapped = true;
    backing.handle = handle->real;
    backing.host_backed = handle->host_backed;
    memory.ledger().add(std::move(backing));
    memory.engine().take_spare(device);
    mapping.in_ledger = true;
    const auto handle_types = static_cast<unsigned long long>(handle->properties.requestedHandleTypes);
    immortal<Allocations>().add(
        {address, mapping.bytes, device, nullptr, nullptr, 0, true, mapping.access, false, handle_types});
}

/// Notes what the driver did to the access to a mapping. A span's grant ends at its first hole: where that
/// may lie before the mapping, `is_reached` false, the driver is asked, who alone knows of all that is
/// mapped.
void note_grant(const driver::Api& api, CUdeviceptr address, Mapping& mapping, const CUmemAccessDesc& granted,
                bool is_reached) {
    unsigned long long flags = granted.flags;
    if (!is_reached && api.cuMemGetAccess(&flags, &granted.location, address) != CUDA_SUCCESS) {
        mapping.has_other_access = true; // it stays, as it is
        return;
    }
    const bool is_of_device = granted.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                              granted.location.id >= 0 && granted.location.id < driver::k_max_devices;
    if (!is_of_device || flags == CU_MEM_ACCESS_FLAGS_PROT_READ) {
        mapping.has_other_access = true;
        return;
    }
    const auto bit = DeviceMask{1} << granted.location.id;
    const bool is_granted = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    mapping.access = is_granted ? mapping.access | bit : mapping.access & ~bit;
}

/// The mappings that lie in [address, address + bytes).
std::vector<CUdeviceptr> mappings_in(const Handles& all, CUdeviceptr address, Bytes bytes)
    GPU_SLEEP_REQUIRES(all.mutex) {
    std::vector<CUdeviceptr> found;
    for (auto at = all.mappings.lower_bound(address); at != all.mappings.end() && at->first < address + bytes;
         ++at)
        found.push_back(at->first);
    return found;
}

} // namespace

Answer map(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
           unsigned long long flags) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        auto& all = immortal<Handles>();
        return memory.with_lock([&](LockedMemory& locked) -> Answer {
            const MutexLock lock(all.mutex);
            auto* mine = find_handle(all, handle);
            if (!mine) return std::nullopt;
            const auto real = real_handle(locked, all, *mine);
            if (!real) return k_sleeps;
            // What takes memory comes first: once the driver has mapped it, nothing may fail.
            std::map<CUdeviceptr, Mapping> made;
            made.emplace(address, Mapping{.bytes = bytes, .offset = offset, .handle = handle});
            mine->mappings.reserve(mine->mappings.size() + 1);
            const auto status = memory.api().cuMemMap(address, bytes, offset, *real, flags);
            if (status != CUDA_SUCCESS) return status;
            if (!mine->mappings.empty()) make_stay(locked, all, *mine, "mapped at several addresses");
            all.mappings.merge(made);
            mine->mappings.push_back(address);
            return CUDA_SUCCESS;
        });
    });
}

Answer set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* grants,
                  std::size_t count) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        const TagChoice choose_tag;
        auto& all = immortal<Handles>();
        return memory.with_lock([&](LockedMemory& locked) -> Answer {
            const MutexLock lock(all.mutex);
            const auto found = mappings_in(all, address, bytes);
            if (found.empty()) return std::nullopt;
            if (any_sleeps(locked, all, found)) return k_sleeps;
            const auto status = memory.api().cuMemSetAccess(address, bytes, grants, count);
            if (status != CUDA_SUCCESS) return status;
            auto reached = address; // without a hole
            for (const auto at : found) {
                auto& mapping = all.mappings.at(at);
                const bool is_reached = at == reached;
                if (is_reached) reached += mapping.bytes;
                for (std::size_t i = 0; i < count; ++i)
                    note_grant(memory.api(), at, mapping, grants[i], is_reached);
                hand_to_ledger(locked, all, at, mapping, choose_tag);
            }
            return CUDA_SUCCESS;
        });
    });
}

Answer unmap(CUdeviceptr address, std::size_t bytes) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        auto& all = immortal<Handles>();
        return memory.with_lock([&](LockedMemory& locked) -> Answer {
            const MutexLock lock(all.mutex);
            const auto found = mappings_in(all, address, bytes);
            if (found.empty()) return std::nullopt;
            if (any_sleeps(locked, all, found)) return k_sleeps;
            const auto status = memory.api().cuMemUnmap(address, bytes);
            if (status != CUDA_SUCCESS) return status;
            for (const auto at : found) {
                auto& mapping = all.mappings.at(at);
                take_from_ledger(locked, all, at, mapping);
                const auto number = mapping.handle;
                all.mappings.erase(at);
                if (auto* mine = find_handle(all, number)) std::erase(mine->mappings, at);
                release_if_unused(memory, all, number);
            }
            return CUDA_SUCCESS;
        });
    });
}

bool has_mappings_in(CUdeviceptr address, std::size_t bytes) noexcept {
    if (!memory()) return false; // the process is ending: the driver alone knows what is mapped
    auto& all = immortal<Handles>();
    const MutexLock lock(all.mutex);
    const auto at = all.mappings.lower_bound(address);
    return at != all.mappings.end() && at->first < address + bytes;
}

bool own_mappings_sleep() noexcept {
    const auto with = memory();
    if (!with) return false;
    return with->with_lock([](const LockedMemory& locked) {
        auto& all = immortal<Handles>();
        const MutexLock lock(all.mutex);
        return std::any_of(all.mappings.begin(), all.mappings.end(), [&](const auto& mapping) {
            return sleeps(locked, mapping.first, mapping.second);
        });
    });
}

} // namespace gpu_sleep::agent::intercepted
