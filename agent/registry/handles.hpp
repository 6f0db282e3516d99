// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory behind handles of the driver: the program's own virtual memory, and memory of other processes.

#pragma once

#include "base/fd.hpp"
#include "base/process.hpp"
#include "common/lock_order.hpp"
#include "driver/memory.hpp"
#include "model/request.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <list>
#include <memory>

namespace gpu_sleep::agent::registry {

struct Handle;
struct Pool;

/// Memory of another process that is being opened, and may be used meanwhile.
struct PassingImport {
    ProcessIdentity from;
    model::SharedMemoryRequest asked;
    off_t lock = 0;      ///< by which its agent has marked the descriptor
    std::string path{};  ///< where the file of its descriptors can be opened anew
    FileIdentity file{}; ///< of a device: all have it in common
};

/// A descriptor by which the program gave the memory of a handle to others.
struct Export {
    std::uint64_t handle = 0;
    std::string path;        ///< where its file can be opened anew
    FileIdentity file;       ///< of a device: all have it in common
    bool was_opened = false; ///< by another process, whose agent has said so
    bool is_gone = false;    ///< no descriptor is left, nor can there be one but its tickets
    /// What lies in place of a descriptor of the program while the memory sleeps.
    struct Ticket {
        int number = -1; ///< of the descriptor
        FileIdentity file;
    };
    std::vector<Ticket> tickets{};
};

struct Mapping {
    CUdeviceptr address = 0;
    Bytes bytes = 0;
    Bytes offset = 0;
    Handle* handle = nullptr;
    driver::DeviceMask access = 0;
    bool has_other_access = false; ///< of the host, or for reading only
    bool in_ledger = false;        ///< the ledger has it, and its driver handle
};

/// Lives until the program has neither it nor a mapping of it.
struct Handle {
    std::uint64_t number = 0;              ///< by which the program names it
    CUmemGenericAllocationHandle real = 0; ///< the driver's, unless the ledger has it
    bool host_backed = false;              ///< that is host memory, to which it was moved
    Bytes bytes = 0;
    CUmemAllocationProp properties{};
    unsigned references = 0;
    std::vector<Mapping*> mappings;
    const char* stay_reason = nullptr; ///< why it has to stay
    bool is_exported = false;
    std::optional<PassingImport> import{}; ///< where it is of another process
    int imported_on = 0;                   ///< the device that was current then
    /// Where the agent has mapped it for a sleep, because the program has not.
    std::optional<driver::VaReservation> place{};
};

/// Why memory of these properties has to stay on the GPU: it cannot be made again as it was. Null: it can.
[[nodiscard]] inline const char* why_it_stays(const CUmemAllocationProp& properties) noexcept {
    if (properties.allocFlags.compressionType != CU_MEM_ALLOCATION_COMP_NONE) return "compressible memory";
    if ((properties.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) != 0) return "memory for sparse arrays";
    if (properties.allocFlags.usage != 0) return "created for a special use";
    constexpr unsigned k_understood = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if ((static_cast<unsigned>(properties.requestedHandleTypes) & ~k_understood) != 0)
        return "created to be shared through the fabric";
    return nullptr;
}

/// The device that copies what is mapped with that access: its own, or for memory of another process any.
[[nodiscard]] inline int copying_device(const Handle& handle, driver::DeviceMask access) noexcept {
    const int own = handle.properties.location.id;
    const bool is_by_other = handle.import && access != 0 && (access >> own & 1) == 0;
    return is_by_other ? std::countr_zero(access) : own;
}

/// Why the memory of a handle stays on the GPU; null where it can sleep. `mapping`: any of its own, if it has
/// one. That has to be the only one, whole, and open to a device that can copy it.
[[nodiscard]] inline const char* why_it_stays(const Handle& handle, const Mapping* mapping) noexcept {
    if (handle.stay_reason) return handle.stay_reason;
    if (!mapping) return "created, but not mapped";
    const bool is_whole = handle.mappings.size() == 1 && mapping->offset == 0 &&
                          mapping->bytes == handle.bytes && !mapping->has_other_access;
    const bool is_open = (mapping->access >> copying_device(handle, mapping->access) & 1) != 0;
    return is_whole && is_open ? nullptr : "mapped in part, or without access for its own device";
}

/// Numbers that no handle of the driver was seen to have, so that a stray one is noticed.
inline constexpr std::uint64_t k_first_handle = 0x6770'0000'0000'0000;

/// Its mutex comes after the memory's, which a sleep holds for long: who asks about handles, or has one
/// without a mapping, which the ledger does not know, needs this one alone.
struct Handles {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::handles)
        GPU_SLEEP_ACQUIRED_BEFORE(lock_order::innermost);
    using ByNumber = std::map<std::uint64_t, Handle>;
    ByNumber handles GPU_SLEEP_GUARDED_BY(mutex);
    using ByAddress = std::map<CUdeviceptr, Mapping>;
    ByAddress mappings GPU_SLEEP_GUARDED_BY(mutex);
    /// By where their descriptors are locked.
    std::map<off_t, Export> exports GPU_SLEEP_GUARDED_BY(mutex);
    std::uint64_t next GPU_SLEEP_GUARDED_BY(mutex) = 0; ///< number of a handle, or an export
    /// They hold locks, so that the memory stays which was imported here and nobody was told of.
    std::vector<HeldFile> unseen_imports GPU_SLEEP_GUARDED_BY(mutex);

    /// Null when the program has no such handle.
    [[nodiscard]] Handle* find(std::uint64_t number) noexcept GPU_SLEEP_REQUIRES(mutex) {
        const auto found = handles.find(number);
        return found == handles.end() ? nullptr : &found->second;
    }
    /// Adds a handle, and returns the number by which the program names it from now on.
    [[nodiscard]] std::uint64_t add(ByNumber::node_type made) noexcept GPU_SLEEP_REQUIRES(mutex) {
        const auto number = k_first_handle + ++next;
        made.key() = made.mapped().number = number;
        handles.insert(std::move(made));
        return number;
    }
    void erase(const Handle& handle) noexcept GPU_SLEEP_REQUIRES(mutex) {
        const auto number = handle.number;
        const auto is_its = [=](const auto& each) { return each.second.handle == number; };
        if (handle.is_exported) std::erase_if(exports, is_its);
        handles.erase(number);
    }
    /// Adds a mapping of a handle, which has room for it.
    Mapping& add(CUdeviceptr address, ByAddress::node_type made) noexcept GPU_SLEEP_REQUIRES(mutex) {
        made.key() = made.mapped().address = address;
        auto& mapping = mappings.insert(std::move(made)).position->second;
        mapping.handle->mappings.push_back(&mapping);
        return mapping;
    }
};

/// Memory of another process that the ledger has.
struct Import {
    ProcessIdentity from;
    model::SharedMemoryRequest asked; ///< by which that process knows it
    CUdeviceptr at = 0;               ///< where it begins
    CUdeviceptr given = 0;            ///< what the program got; 0: it came by a descriptor
    std::optional<driver::VaReservation> place{};
    unsigned opens = 1; ///< 0: closed, and work may yet use it
    /// Whether others may have other parts of it: several allocations lie in it.
    bool is_in_common = false;
    bool is_asleep = false;
    bool stays = false;                 ///< for another reason than that others have it
    bool goes = false;                  ///< to sleep, or wakes, in the party of its owner
    std::shared_ptr<HeldFile> epochs{}; ///< asleep: the owner's, see SharedRanges::goes_down()
    std::uint64_t epoch = 0;            ///< that it says while the contents kept here are the owner's
    std::shared_ptr<Pool> pool{};       ///< by which it was imported; null: by CUDA IPC, or a descriptor
};

struct Imports {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::handles)
        GPU_SLEEP_ACQUIRED_BEFORE(lock_order::innermost);
    std::list<Import> all GPU_SLEEP_GUARDED_BY(mutex);
    std::list<PassingImport> passing GPU_SLEEP_GUARDED_BY(mutex);
    std::list<HeldFile> adopted GPU_SLEEP_GUARDED_BY(mutex); ///< locks of what has no owner but this process
    std::atomic<bool> has_had_any_of_pools{false};           ///< without any, no free has to look for one

    // None of these takes memory.

    void add(std::list<Import> made) noexcept {
        if (!made.empty() && made.front().pool) has_had_any_of_pools = true;
        const MutexLock lock(mutex);
        all.splice(all.end(), made);
    }
    /// Takes out what the ledger is to have no more. Its place may go once nothing is mapped there.
    std::list<Import> take(CUdeviceptr at) noexcept {
        std::list<Import> taken;
        const MutexLock lock(mutex);
        const auto import = std::ranges::find(all, at, &Import::at);
        if (import != all.end()) taken.splice(taken.end(), all, import);
        return taken;
    }
    /// Closes once what was given to the program at the address, by a pool or by CUDA IPC. Returns how often
    /// it is open still; nothing if there is none.
    [[nodiscard]] std::optional<unsigned> close_once(CUdeviceptr address, bool is_of_pool) noexcept {
        const MutexLock lock(mutex);
        for (auto& import : all)
            if (import.place && import.given == address && (import.pool != nullptr) == is_of_pool &&
                import.opens != 0)
                return --import.opens;
        return std::nullopt;
    }
};

} // namespace gpu_sleep::agent::registry
