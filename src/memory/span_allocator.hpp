// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Deals out parts of a span of numbers, and takes them back: best fit, neighbours joined. Knows no memory.

#pragma once

#include "base/units.hpp"

#include <map>
#include <optional>
#include <set>
#include <utility>

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

} // namespace gpu_sleep::memory
