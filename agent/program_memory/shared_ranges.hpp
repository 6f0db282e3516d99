// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which ranges other processes may ask for. Apart from the mutex of the program's memory, which a sleep holds
// for long.

#pragma once

#include "base/fd.hpp"
#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "driver/memory.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace gpu_sleep::agent {

/// Thread-safe. Its mutex comes after that of the program's memory.
class SharedRanges {
public:
    struct Range {
        std::uint64_t allocation = 0;              ///< the id of the allocation that is shared
        driver::PhysicalMemory::Handle handle = 0; ///< of the backing, which stays
        Bytes bytes = 0;                           ///< of the backing
        Bytes offset = 0;                          ///< of the allocation in it
    };
    struct Exported {
        Range range;
        UniqueFd memory;
    };

    void add(driver::DeviceAddress address, const Range& range);
    /// A range that nobody gets any more; shared again when this is destroyed, unless it ended.
    class Withdrawn {
    public:
        Withdrawn(const Withdrawn&) = delete;
        Withdrawn& operator=(const Withdrawn&) = delete;
        ~Withdrawn();
        void end() noexcept { node_ = {}; }

    private:
        friend class SharedRanges;
        using Node = std::map<driver::DeviceAddress, Range>::node_type;
        Withdrawn(SharedRanges& owner, Node node) noexcept : owner_(owner), node_(std::move(node)) {}

        SharedRanges& owner_;
        Node node_; ///< empty if it was not shared
    };
    /// Before its memory is released.
    [[nodiscard]] Withdrawn withdraw(driver::DeviceAddress address) noexcept;
    /// The memory of allocation `id`, which begins at `address`. `is_allocated`: whether it still is; asked
    /// while it cannot be forgotten. Errors: not_owned; those of driver::export_memory().
    [[nodiscard]] Result<Exported> open(const driver::Api& api, driver::DeviceAddress address,
                                        std::uint64_t id, const std::function<bool()>& is_allocated);

private:
    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::handles)
        GPU_SLEEP_ACQUIRED_BEFORE(lock_order::innermost);
    std::map<driver::DeviceAddress, Range> ranges_ GPU_SLEEP_GUARDED_BY(mutex_);
};

} // namespace gpu_sleep::agent
