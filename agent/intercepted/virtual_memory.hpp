// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's own virtual memory: its handles, its mappings, and which of them have to stay.

#pragma once

#include "intercepted/calls.hpp"

namespace gpu_sleep::agent::intercepted {

[[nodiscard]] Answer create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                            const CUmemAllocationProp* properties, unsigned long long flags) noexcept;
[[nodiscard]] Answer release(CUmemGenericAllocationHandle handle) noexcept;
[[nodiscard]] Answer retain_handle(CUmemGenericAllocationHandle* handle, const void* address) noexcept;
[[nodiscard]] Answer properties_of(CUmemAllocationProp* properties,
                                   CUmemGenericAllocationHandle handle) noexcept;
/// Adds where the handle's memory is mapped; nothing for one that is none of ours. May throw for want of
/// memory.
void add_mappings_of(CUmemGenericAllocationHandle handle, gate::Named& named);

[[nodiscard]] Answer map(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) noexcept;
[[nodiscard]] Answer unmap(CUdeviceptr address, std::size_t bytes) noexcept;
[[nodiscard]] Answer set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* grants,
                                std::size_t count) noexcept;
/// Whether the program has something mapped there, awake or asleep.
[[nodiscard]] bool has_mappings_in(CUdeviceptr address, std::size_t bytes) noexcept;
/// Whether memory that the program mapped itself sleeps, which it cannot unmap.
[[nodiscard]] bool own_mappings_sleep() noexcept;
/// Runs `use` with the driver's handle behind the program's, or with the handle itself when it is none of
/// ours. If it succeeds the memory has to stay where it is from now on; `reason` says why. The caller passes
/// the gate meanwhile, so that nothing moves.
CUresult use_handle(CUmemGenericAllocationHandle handle, const char* reason,
                    const std::function<CUresult(CUmemGenericAllocationHandle)>& use) noexcept;
/// Runs the driver's cuMemMapArrayAsync on a copy of `maps` that has the driver's handles.
CUresult map_arrays(const CUarrayMapInfo* maps, unsigned count,
                    const std::function<CUresult(CUarrayMapInfo*)>& map) noexcept;
/// Memory in the span has to stay where it is from now on. The caller passes the gate since before it was
/// given away.
void make_span_stay(CUdeviceptr address, std::size_t bytes, const char* reason) noexcept;
/// Adds the program's handles whose memory cannot sleep.
void add_handles_that_stay(std::vector<Residual>& sums);

// For those who share what is behind a handle with other processes.

/// Calls `use` under the mutexes of the program's memory and of its handles, if there is any. Lets nothing
/// cross.
template <class Use>
void with_handles(const Use& use) noexcept {
    with_memory([&](ProgramMemory& memory) {
        // Clang does not see that the mutex which `use` requires is that of the handles it is given.
        memory.with_lock([&](LockedMemory& locked) GPU_SLEEP_UNCHECKED {
            auto& all = books().handles;
            const MutexLock lock(all.mutex);
            use(locked, all);
        });
    });
}
/// The driver's handle; nothing when its memory sleeps.
[[nodiscard]] std::optional<CUmemGenericAllocationHandle> real_handle(const LockedMemory& memory,
                                                                      const Handle& handle);
/// The driver's handle behind the program's, or the handle itself when it is none of ours; nothing when its
/// memory sleeps.
[[nodiscard]] std::optional<CUmemGenericAllocationHandle>
real_handle_of(CUmemGenericAllocationHandle handle) noexcept;
/// Unless it sleeps, the handle's memory stays where it is from now on; `reason` says why.
void make_handle_stay(CUmemGenericAllocationHandle handle, const char* reason) noexcept;
/// Lets others ask for the memory of an exported handle: it stays unless all of them go to sleep.
void share_handle(LockedMemory& memory, const Handle& handle);
/// Maps a handle of so many bytes where nothing else is. Errors: out_of_device_memory, driver_failed.
[[nodiscard]] Result<driver::VaReservation> map_at_own_place(const driver::Api& api, Bytes bytes,
                                                             driver::PhysicalMemory::Handle handle,
                                                             driver::DeviceMask access);
/// Maps what was imported and is mapped nowhere at a place of its own, so that it can sleep as all that is
/// mapped. May throw for want of memory.
void map_loose_imports(ProgramMemory& memory);
/// Unmaps it again, unless it sleeps.
void unmap_loose_imports(ProgramMemory& memory, LockedMemory& locked) noexcept;
/// What sleeps there is the program's own from now on, and no import, if a handle of the program has it.
void adopt_mapping(LockedMemory& locked, CUdeviceptr address) noexcept;

} // namespace gpu_sleep::agent::intercepted
