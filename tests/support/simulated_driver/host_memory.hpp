// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Page-locked host memory: what the program registered or allocated.

#pragma once

#include "support/simulated_driver/address_space.hpp"

#include <cuda.h>

#include <cstdint>
#include <map>

namespace gpu_sleep::sim {

class Context;

struct HostRange {
    std::uint64_t begin = 0, bytes = 0;
    bool allocated = false; ///< by the driver, which frees it
    const Context* owner = nullptr;
    Generation since = 0;
};

/// The table of page-locked ranges. Guarded by the driver's lock.
class HostMemory {
public:
    /// Registers memory of the program. Errors: INVALID_VALUE (not mapped in this process),
    /// HOST_MEMORY_ALREADY_REGISTERED (any part of it).
    CUresult add(HostRange range);
    /// Allocates and registers zeroed memory. Errors: OUT_OF_MEMORY.
    CUresult allocate(HostRange range, std::uint64_t& begin);
    /// Ends the registration that starts at `begin`. Errors: HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE
    /// (allocated).
    CUresult remove(std::uint64_t begin);
    /// Frees what allocate() made. Errors: INVALID_VALUE.
    CUresult free(std::uint64_t begin);
    /// Ends all registrations of `owner`, and frees what was allocated for it.
    void remove_all_of(const Context* owner);

    /// The range that holds `address`, or null. Valid until the next change.
    [[nodiscard]] const HostRange* find(std::uint64_t address) const;
    /// Whether all of a span has been registered since no later than `as_of`.
    [[nodiscard]] bool covers(std::uint64_t begin, std::uint64_t bytes, Generation as_of) const;
    /// Whether any part of a span is registered.
    [[nodiscard]] bool overlaps(std::uint64_t begin, std::uint64_t bytes) const;
    [[nodiscard]] Generation now() const noexcept { return generation_; }

    [[nodiscard]] std::uint64_t count() const noexcept { return ranges_.size(); }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

private:
    using Ranges = std::map<std::uint64_t, HostRange>;
    Ranges::iterator erase(Ranges::iterator it);

    Ranges ranges_;
    std::uint64_t bytes_ = 0;
    Generation generation_ = 1;
};

} // namespace gpu_sleep::sim
