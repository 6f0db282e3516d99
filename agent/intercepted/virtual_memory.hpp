// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's handles of virtual memory, for those who share what is behind them with other processes.

#pragma once

#include "intercepted/calls.hpp"

namespace gpu_sleep::agent::intercepted {

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

} // namespace gpu_sleep::agent::intercepted
