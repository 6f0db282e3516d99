// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Allocating GPU memory that can sleep: address space by device and tag, ranges in it, and small
// allocations that share ranges.

#pragma once

#include "base/units.hpp"
#include "driver/memory.hpp"
#include "ledger/ledger.hpp"

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace gpu_sleep::memory {

/// Deals out [0, bytes) in multiples of `step`. All operations take logarithmic time. Not thread-safe.
class SpanAllocator {
public:
    /// `bytes` is a multiple of `step`, a power of two.
    SpanAllocator(Bytes bytes, Bytes step);

    /// The offset of `bytes` (rounded up to the step) that were free, or nothing if no free span is long
    /// enough. Where it throws for want of memory, nothing has changed.
    [[nodiscard]] std::optional<Bytes> allocate(Bytes bytes);

    /// Takes back what allocate() gave at `offset` and returns its length; nothing if nothing begins there.
    std::optional<Bytes> free(Bytes offset);

    /// The length of what was allocated at `offset`, rounded up; nothing if nothing begins there.
    [[nodiscard]] std::optional<Bytes> allocated_at(Bytes offset) const;
    /// Where the allocation that holds `offset` begins; nothing if it is free.
    [[nodiscard]] std::optional<Bytes> allocation_holding(Bytes offset) const;

    [[nodiscard]] Bytes largest_free() const noexcept {
        return by_size_.empty() ? 0 : by_size_.rbegin()->first;
    }
    [[nodiscard]] bool is_empty() const noexcept { return allocated_.empty(); }

private:
    void insert_free(Bytes offset, Bytes bytes);
    void erase_free(std::map<Bytes, Bytes>::iterator at);

    Bytes step_;
    std::map<Bytes, Bytes> free_;               ///< offset -> length
    std::set<std::pair<Bytes, Bytes>> by_size_; ///< (length, offset) of the same
    std::map<Bytes, Bytes> allocated_;          ///< offset -> length
};

/// Allocations up to this size share a range with others of their device and tag.
inline constexpr Bytes k_largest_small = k_mib;
/// Every address it gives is a multiple of this: what cuMemAlloc gives, and what kernels with wide loads
/// expect.
inline constexpr Bytes k_alignment = 512;

/// The work that is left after freeing an allocation.
struct Freed {
    /// The kept range of a freed range, which has to be forgotten; 0 for none.
    std::uint64_t kept = 0;
};

/// Allocates ranges and records them in the ledger. Neighbours of one device and tag get neighbouring
/// addresses, so that a sleep unmaps them together. Not thread-safe: the mutex that guards the ledger guards
/// it too. Calls of the driver need no current context.
class Heap {
public:
    Heap(const driver::Api& api, ledger::Ledger& ledger) noexcept : api_(api), ledger_(ledger) {}

    /// Memory of `bytes` on `device`, awake, uninitialised. Errors: invalid_argument (zero bytes or no such
    /// device), out_of_device_memory, driver_failed; nothing changed.
    [[nodiscard]] Result<driver::DeviceAddress> allocate(int device, ledger::TagId tag, Bytes bytes);

    /// The same in host memory, which the device uses at its own addresses: a range that no other allocation
    /// shares. Errors: the same; out_of_host_memory, driver_failed (the device has no such memory, in words).
    [[nodiscard]] Result<driver::DeviceAddress> allocate_in_host_memory(int device, ledger::TagId tag,
                                                                        Bytes bytes);

    /// Frees what begins at `address`, awake or asleep. No work may still use it.
    /// Errors: not_owned; driver_failed (it is still allocated).
    [[nodiscard]] Result<Freed> free(driver::DeviceAddress address);

    /// The allocation that holds `address`: its backing, and its place in it. Errors: not_owned.
    struct Place {
        ledger::Backing* backing = nullptr;
        Span span; ///< the whole allocation; a small one rounded up to k_alignment
    };
    [[nodiscard]] Result<Place> locate(driver::DeviceAddress address);

    /// Grants `device` access to the range that holds `address`. Errors: not_owned, invalid_argument,
    /// driver_failed.
    [[nodiscard]] Result<void> allow_access(driver::DeviceAddress address, int device);

    /// Devices that have, or had, ranges.
    [[nodiscard]] std::vector<int> devices() const;

private:
    struct Region {
        driver::VaReservation reservation;
        SpanAllocator spans;
    };
    /// The ranges of one tag on one device.
    struct Pool {
        std::map<driver::DeviceAddress, Region> regions;
        std::map<driver::DeviceAddress, SpanAllocator> blocks; ///< ranges shared by small allocations
        std::set<std::pair<Bytes, driver::DeviceAddress>> blocks_by_space; ///< (largest free span, block)
    };
    struct Device {
        driver::MemoryKind kind;
        Bytes memory;                                ///< of the device in all
        std::optional<driver::MemoryKind> host_kind; ///< once it was asked for
    };
    using PoolKey = std::pair<int, ledger::TagId>;

    [[nodiscard]] Result<Device*> device(int ordinal);
    [[nodiscard]] Pool& pool_of(const ledger::Backing& backing) {
        return pools_[{backing.device, backing.tag}];
    }
    [[nodiscard]] Result<driver::DeviceAddress> reserve(Pool& pool, const Device& device, Bytes bytes);
    void unreserve(Pool& pool, driver::DeviceAddress address);
    /// Where it fails or throws for want of memory, nothing has changed.
    [[nodiscard]] Result<ledger::Backing*> add_range(Pool& pool, const Device& device, ledger::TagId tag,
                                                     Bytes bytes, const driver::MemoryKind& kind);
    /// Puts memory behind reserved addresses, and into the ledger.
    [[nodiscard]] Result<ledger::Backing*> back(driver::AddressSpan span, const driver::MemoryKind& kind,
                                                ledger::TagId tag);
    [[nodiscard]] Result<driver::DeviceAddress> allocate_range(const Device& device, ledger::TagId tag,
                                                               Bytes bytes, const driver::MemoryKind& kind);
    [[nodiscard]] Result<Freed> remove_range(Pool& pool, ledger::Backing& backing);
    [[nodiscard]] Result<driver::DeviceAddress> allocate_small(Pool& pool, const Device& device,
                                                               ledger::TagId tag, Bytes bytes);
    [[nodiscard]] Result<driver::DeviceAddress> allocate_in_new_block(Pool& pool, const Device& device,
                                                                      ledger::TagId tag, Bytes bytes);
    [[nodiscard]] Result<Freed> free_small(ledger::Backing& backing, driver::DeviceAddress address);
    /// `before`: the largest free span that the block had.
    static void update_space(Pool& pool, driver::DeviceAddress block, Bytes before);

    const driver::Api& api_;
    ledger::Ledger& ledger_;
    std::map<int, Device> devices_;
    std::map<PoolKey, Pool> pools_;
};

} // namespace gpu_sleep::memory
