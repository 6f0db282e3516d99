// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The device's virtual addresses: what is reserved, what is mapped where, and which device may touch it. A
// device address is an address of this process; while nobody may access it, it faults.

#pragma once

#include "support/simulated_driver/physical_memory.hpp"

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

namespace gpu_sleep::sim {

/// Bytes of a page of the host: what its memory is protected and locked by.
inline constexpr std::uint64_t k_page = 4096;

/// Counts events that decide whether memory is still what it was when work was submitted.
using Generation = std::uint64_t;

enum class Access : std::uint8_t { read, write };

/// Who touches memory: a device, and the devices whose plain allocations its context was given access to (one
/// bit each).
struct Accessor {
    int device = 0;
    std::uint32_t peers = 0;
};

/// What put a mapping there, and so who may touch it: the program's grants decide (program, pool), the owner
/// and its enabled peers may (plain), or everybody (managed). Only the program's may be unmapped by
/// cuMemUnmap.
enum class Origin : std::uint8_t { program, plain, managed, pool };

/// Memory of one allocation, shown at an address.
struct Mapping {
    std::uint64_t begin = 0, bytes = 0;
    std::shared_ptr<Physical> memory;
    Generation since = 0;
    std::uint32_t readers = 0; ///< one bit for each device
    std::uint32_t writers = 0;
    int protection = 0; ///< of the pages of this process; PROT_NONE until somebody is granted access
    Origin origin = Origin::program;
    CUmemGenericAllocationHandle handle = 0; ///< that it was made with; 0 when not by the program

    [[nodiscard]] std::uint64_t end() const noexcept { return begin + bytes; }
};

struct SpaceTotals {
    std::uint64_t reservations = 0, mappings = 0, mapped_bytes = 0;
};

/// The tables of addresses. Guarded by the driver's lock. Errors are the driver's own:
/// CUDA_ERROR_INVALID_VALUE for a span that is not what it should be, CUDA_ERROR_OUT_OF_MEMORY when the host
/// refuses; then nothing changed, unless a function says otherwise.
class AddressSpace {
public:
    /// Reserves addresses, at `hint` if they are free there. `alignment` is a power of two.
    CUresult reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t hint, Origin origin,
                     std::uint64_t& begin);
    /// Gives a whole reservation back; nothing may be mapped in it.
    CUresult free_reservation(std::uint64_t begin, std::uint64_t bytes);

    CUresult map(std::uint64_t begin, std::shared_ptr<Physical> memory, Origin origin,
                 CUmemGenericAllocationHandle handle = 0);
    /// Reserves addresses for `memory` and maps it there, for `device` to read and write.
    CUresult place(std::shared_ptr<Physical> memory, Origin origin, int device, std::uint64_t& begin);
    /// Undoes place().
    void remove(std::uint64_t begin);
    /// Unmaps all mappings of a span that begins in a reservation. It may have holes, or nothing mapped at
    /// all, but cut no mapping.
    CUresult unmap(std::uint64_t begin, std::uint64_t bytes);
    /// Sets what the devices in `devices` (one bit each) may do in a span, up to its first hole. It begins
    /// and ends with a mapping, and cuts none.
    CUresult set_access(std::uint64_t begin, std::uint64_t bytes, std::uint32_t devices,
                        CUmemAccess_flags flags);
    /// Shows the mappings of `memory` in the file where it lies now.
    CUresult remap(const Physical& memory);

    /// Calls `body` with the memory of each mapping.
    template <class Body>
    void for_each_memory(Body&& body) const {
        for (const auto& [begin, mapping] : mappings_) body(mapping.memory);
    }

    /// The mapping that holds `address`, or null. Valid until the next change.
    [[nodiscard]] const Mapping* find(std::uint64_t address) const;
    /// Where this process reads and writes a span: in the window of its memory, whose pages it has touched
    /// before (a first touch costs 20 us for each page in some virtual machines), or at its address.
    [[nodiscard]] std::byte* bytes_at(std::uint64_t begin, std::uint64_t bytes) const;
    [[nodiscard]] bool is_reserved(std::uint64_t address) const;
    /// Whether a reservation that holds `address` is there for an allocation, and not the program's own.
    [[nodiscard]] bool is_allocation(std::uint64_t address) const;
    /// The reservation that starts at `begin`: its length, or 0.
    [[nodiscard]] std::uint64_t reservation_bytes(std::uint64_t begin) const;

    /// Whether all of a span is mapped, since no later than `as_of`, and `who` may do `access` to it.
    [[nodiscard]] bool accessible(std::uint64_t begin, std::uint64_t bytes, Accessor who, Access access,
                                  Generation as_of) const;

    /// A number that is at least that of every mapping there is, and less than that of every later one.
    [[nodiscard]] Generation now() const noexcept { return generation_; }
    /// What the program reserved and mapped itself.
    [[nodiscard]] const SpaceTotals& totals() const noexcept { return totals_; }

private:
    using Mappings = std::map<std::uint64_t, Mapping>;

    /// The mappings in a span: first, and one past the last. Nothing if one lies across its border.
    std::optional<std::pair<Mappings::iterator, Mappings::iterator>> whole_mappings(std::uint64_t begin,
                                                                                    std::uint64_t bytes);
    /// Where a run of neighbours without holes ends that `first` begins, before `last`.
    static Mappings::iterator end_of_run(Mappings::iterator first, Mappings::iterator last);
    CUresult show(Mappings::iterator first, Mappings::iterator last, int protection);

    struct Reservation {
        std::uint64_t bytes;
        Origin origin;
    };

    std::map<std::uint64_t, Reservation> reservations_;
    Mappings mappings_;
    Generation generation_ = 1;
    SpaceTotals totals_;
};

} // namespace gpu_sleep::sim
