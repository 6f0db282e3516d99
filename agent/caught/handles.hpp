// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's own handles and mappings, and which of them the ledger has. Internal to this module.

#pragma once

#include "caught/state.hpp"

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace gpu_sleep::agent::caught {

struct Mapping {
    Bytes bytes = 0;
    Bytes offset = 0;
    std::uint64_t handle = 0; ///< the program's
    driver::DeviceMask access = 0;
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
    static Handles& instance();
};

/// Null when the program has no such handle.
[[nodiscard]] Handle* find_handle(Handles& all, std::uint64_t number);
/// Gives it back to the driver once the program has neither it nor a mapping of it.
void release_if_unused(ProgramMemory& memory, Handles& all, std::uint64_t number);

/// Whether the mapping's contents are kept elsewhere, and its handle has no memory.
[[nodiscard]] bool sleeps(const LockedMemory& memory, CUdeviceptr address, const Mapping& mapping);
[[nodiscard]] bool any_sleeps(const LockedMemory& memory, const Handles& all,
                              const std::vector<CUdeviceptr>& mappings);

/// Takes a mapping out of the ledger; its handle knows the driver's again. False when it sleeps: then it
/// stays, for the ledger alone knows where its contents are.
bool strike_off(LockedMemory& memory, Handles& all, CUdeviceptr address, Mapping& mapping);
/// Its memory stays where it is from now on; `reason` says why. False when it sleeps: then nothing changes.
bool pin(LockedMemory& memory, Handles& all, Handle& handle, const char* reason);

} // namespace gpu_sleep::agent::caught
