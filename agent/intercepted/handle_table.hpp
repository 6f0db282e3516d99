// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's own handles and mappings, and which of them the ledger has. Internal to this module.

#pragma once

#include "base/memory.hpp"
#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "intercepted/state.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace gpu_sleep::agent::intercepted {

struct Mapping {
    Bytes bytes = 0;
    Bytes offset = 0;
    std::uint64_t handle = 0; ///< the program's
    driver::DeviceMask access = 0;
    bool has_other_access = false; ///< of the host, or for reading only
    bool in_ledger = false;        ///< the ledger has it, and its driver handle
};

struct Handle {
    CUmemGenericAllocationHandle real = 0; ///< the driver's, unless the ledger has it
    bool host_backed = false;              ///< that is host memory, to which it was moved
    Bytes bytes = 0;
    CUmemAllocationProp properties{};
    unsigned references = 0;
    std::vector<CUdeviceptr> mappings;
    const char* stay_reason = nullptr; ///< why it has to stay
};

/// Its mutex comes after the memory's, which a sleep holds for long: who asks about handles, or has one
/// without a mapping, which the ledger does not know, needs this one alone.
struct Handles {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::handles)
        GPU_SLEEP_ACQUIRED_BEFORE(lock_order::innermost);
    std::map<std::uint64_t, Handle> handles GPU_SLEEP_GUARDED_BY(mutex);
    std::map<CUdeviceptr, Mapping> mappings GPU_SLEEP_GUARDED_BY(mutex);
    std::uint64_t next GPU_SLEEP_GUARDED_BY(mutex) = 0;
};

/// Null when the program has no such handle.
[[nodiscard]] Handle* find_handle(Handles& all, std::uint64_t number) GPU_SLEEP_REQUIRES(all.mutex);
/// Gives it back to the driver once the program has neither it nor a mapping of it.
void release_if_unused(ProgramMemory& memory, Handles& all, std::uint64_t number)
    GPU_SLEEP_REQUIRES(all.mutex);

/// Whether the mapping's contents are kept elsewhere, and its handle has no memory.
[[nodiscard]] bool sleeps(const LockedMemory& memory, CUdeviceptr address, const Mapping& mapping);
[[nodiscard]] bool any_sleeps(const LockedMemory& memory, const Handles& all,
                              const std::vector<CUdeviceptr>& mappings) GPU_SLEEP_REQUIRES(all.mutex);

/// The driver's handle; nothing when its memory sleeps.
[[nodiscard]] std::optional<CUmemGenericAllocationHandle>
real_handle(const LockedMemory& memory, const Handles& all, const Handle& handle)
    GPU_SLEEP_REQUIRES(all.mutex);

/// Takes a mapping out of the ledger; its handle knows the driver's again. False when it sleeps: then it
/// stays, for the ledger alone knows where its contents are.
bool take_from_ledger(LockedMemory& memory, Handles& all, CUdeviceptr address, Mapping& mapping)
    GPU_SLEEP_REQUIRES(all.mutex);
/// Its memory stays where it is from now on; `reason` says why. False when it sleeps: then nothing changes.
bool make_stay(LockedMemory& memory, Handles& all, Handle& handle, const char* reason)
    GPU_SLEEP_REQUIRES(all.mutex);

} // namespace gpu_sleep::agent::intercepted
