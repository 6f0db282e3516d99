// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory of other processes, and what is freed or closed once no graph capture is open.

#pragma once

#include "base/process.hpp"
#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "driver/memory.hpp"
#include "registry/allocations.hpp"

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <utility>

namespace gpu_sleep::agent::registry {

/// Memory of another process, opened here.
struct Import {
    ProcessIdentity from;
    std::uint64_t allocation = 0; ///< there
    CUdeviceptr given = 0;        ///< what the program got
    driver::VaReservation place;
    driver::DeviceMask access = 0;
    unsigned opens = 1;
};

struct Imports {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::handles)
        GPU_SLEEP_ACQUIRED_BEFORE(lock_order::innermost);
    std::list<Import> all GPU_SLEEP_GUARDED_BY(mutex);
};

/// Frees and closings that wait until no capture is open: to wait for the work that may use it would break a
/// capture, and so would not waiting. Takes no memory. Thread-safe.
class Deferred {
public:
    struct Items {
        std::map<CUdeviceptr, Allocation> allocations;
        std::list<Import> imports;
        [[nodiscard]] bool is_empty() const noexcept { return allocations.empty() && imports.empty(); }
    };

    [[nodiscard]] bool has_any() const noexcept { return has_any_; }
    void add(Allocations::Record freed) noexcept {
        const MutexLock lock(mutex_);
        items_.allocations.insert(std::move(freed));
        has_any_ = true;
    }
    void add(Items& items) noexcept {
        const MutexLock lock(mutex_);
        items_.allocations.merge(items.allocations);
        items_.imports.splice(items_.imports.end(), items.imports);
        has_any_ = !items_.is_empty();
    }
    [[nodiscard]] Items take_all() noexcept {
        const MutexLock lock(mutex_);
        has_any_ = false;
        return std::exchange(items_, {});
    }
    /// Takes out the allocations that are wanted.
    template <class Wanted>
    [[nodiscard]] Items take(const Wanted& wanted) noexcept {
        const MutexLock lock(mutex_);
        Items taken{move_out(items_.allocations, [&](const auto& each) { return wanted(each.second); }), {}};
        has_any_ = !items_.is_empty();
        return taken;
    }

private:
    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    Items items_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::atomic<bool> has_any_{false};
};

} // namespace gpu_sleep::agent::registry
