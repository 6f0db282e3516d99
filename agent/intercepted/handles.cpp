// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's own handles: they stay good while the driver's die at a sleep.

#include "intercepted/handles.hpp"

#include "base/memory.hpp"
#include "base/thread_safety.hpp"
#include "intercepted/allocations.hpp"
#include "intercepted/handle_table.hpp"
#include "intercepted/state.hpp"
#include "intercepted/waiting_frees.hpp"

#include <iterator>

namespace gpu_sleep::agent::intercepted {
namespace {

/// Numbers that no handle of the driver was seen to have, so that a stray one is noticed.
constexpr std::uint64_t k_first_handle = 0x6770'0000'0000'0000;

/// Why memory of these properties cannot be made again as it was; null when it can.
const char* why_it_must_stay(const CUmemAllocationProp& properties) {
    if (properties.allocFlags.compressionType != CU_MEM_ALLOCATION_COMP_NONE) return "compressible memory";
    if ((properties.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) != 0) return "memory for sparse arrays";
    if (properties.allocFlags.usage != 0) return "created for a special use";
    constexpr unsigned k_understood = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if ((static_cast<unsigned>(properties.requestedHandleTypes) & ~k_understood) != 0)
        return "created to be shared through the fabric";
    return nullptr;
}

} // namespace

Answer create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* properties,
              unsigned long long flags) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        if (!handle || !properties || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            properties->location.id < 0 || properties->location.id >= driver::k_max_devices)
            return std::nullopt;
        // What takes memory comes first: once the driver has made it, nothing may fail.
        std::map<std::uint64_t, Handle> made;
        auto& mine = made[0];
        const auto status = try_for_memory(
            memory, [&] { return memory.api().cuMemCreate(&mine.real, bytes, properties, flags); },
            [](CUresult tried) { return tried == CUDA_ERROR_OUT_OF_MEMORY; });
        if (status == CUDA_ERROR_OUT_OF_MEMORY) memory.note_shortage(properties->location.id, bytes);
        if (status != CUDA_SUCCESS) return status;
        mine.bytes = bytes;
        mine.properties = *properties;
        mine.references = 1;
        mine.stay_reason = why_it_must_stay(*properties);
        auto& all = immortal<Handles>();
        const MutexLock lock(all.mutex);
        *handle = k_first_handle + ++all.next;
        auto node = made.extract(made.begin());
        node.key() = *handle;
        all.handles.insert(std::move(node));
        return CUDA_SUCCESS;
    });
}

Answer release(CUmemGenericAllocationHandle handle) noexcept {
    return answered([&]() -> Answer {
        const auto with = memory();
        if (!with) return handle >= k_first_handle ? Answer(CUDA_SUCCESS) : std::nullopt;
        auto& all = immortal<Handles>();
        const MutexLock lock(all.mutex);
        auto* mine = find_handle(all, handle);
        if (!mine) return std::nullopt;
        if (mine->references == 0) return CUDA_ERROR_INVALID_VALUE;
        --mine->references;
        release_if_unused(*with, all, handle);
        return CUDA_SUCCESS;
    });
}

Answer retain_handle(CUmemGenericAllocationHandle* handle, const void* address) noexcept {
    return answered_with_memory([&](ProgramMemory&) -> Answer {
        if (!handle) return std::nullopt;
        const auto at = reinterpret_cast<CUdeviceptr>(address);
        // Of our own memory there is none to be had, as of the driver's plain memory.
        const auto none = immortal<Allocations>().find(at) ? Answer(CUDA_ERROR_INVALID_VALUE) : std::nullopt;
        auto& all = immortal<Handles>();
        const MutexLock lock(all.mutex);
        auto after = all.mappings.upper_bound(at);
        if (after == all.mappings.begin()) return none;
        const auto& [start, mapping] = *std::prev(after);
        if (at - start >= mapping.bytes) return none;
        auto* mine = find_handle(all, mapping.handle);
        if (!mine) return none;
        ++mine->references;
        *handle = mapping.handle;
        return CUDA_SUCCESS;
    });
}

Answer properties_of(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) noexcept {
    return answered_with_memory([&](ProgramMemory&) -> Answer {
        if (!properties) return std::nullopt;
        auto& all = immortal<Handles>();
        const MutexLock lock(all.mutex);
        const auto* mine = find_handle(all, handle);
        if (!mine) return std::nullopt;
        *properties = mine->properties;
        return CUDA_SUCCESS;
    });
}

void add_mappings_of(CUmemGenericAllocationHandle handle, gate::Named& named) {
    auto& all = immortal<Handles>();
    const MutexLock lock(all.mutex);
    const auto* mine = find_handle(all, handle);
    if (!mine) return;
    for (const auto at : mine->mappings) named.spans.push_back({at, at + all.mappings.at(at).bytes});
}

} // namespace gpu_sleep::agent::intercepted
