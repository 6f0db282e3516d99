// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The one root of what is known of the program's use of the driver.

#pragma once

#include "base/memory.hpp"
#include "model/unseen_libraries.hpp"
#include "registry/allocations.hpp"
#include "registry/captures.hpp"
#include "registry/contexts.hpp"
#include "registry/handles.hpp"
#include "registry/objects.hpp"
#include "registry/pools.hpp"
#include "registry/residual.hpp"

#include <array>
#include <atomic>
#include <map>
#include <unordered_map>
#include <vector>

namespace gpu_sleep::agent::registry {

/// Which devices may reach whose plain memory: cuCtxEnablePeerAccess.
struct PeerAccess {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::array<driver::DeviceMask, driver::k_max_devices> accessors GPU_SLEEP_GUARDED_BY(mutex){};
};

/// The addresses that each node of an executable graph names. A node with a child graph has the addresses of
/// that: if it changes, all of them are replaced.
struct Graphs {
    using Nodes = std::unordered_map<CUgraphNode, gate::Named>;
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::unordered_map<CUgraphExec, Nodes> named GPU_SLEEP_GUARDED_BY(mutex);
};

/// Use of the driver that the hooks do not see.
struct Unseen {
    /// Calls that this build does not know: room for all that the hooks tell apart, and one for the others;
    /// null behind the last. Names live as long as the process.
    std::array<std::atomic<const char*>, 257> calls{};
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    /// The findings of the last look at all libraries' calls.
    std::vector<model::UnseenUse> bypassing GPU_SLEEP_GUARDED_BY(mutex);
};

/// All that was known of a context, out of the books while it may end, for another may get its handle at
/// once.
struct Departed {
    CUcontext context = nullptr;
    bool is_primary = false;
    std::map<CUdeviceptr, Allocation> allocations; ///< that die with it
    Later::Items later;                            ///< those that are freed later, and what was freed in it
    Captures::Taken captures;
    Contexts::Record record;
    ResidualRecords::Taken residual;
};

/// The books, in the order in which their mutexes are taken. Each is thread-safe, or has a mutex for whoever
/// uses it.
struct Registry {
    Contexts contexts;
    Captures captures;
    Pools pools;
    Handles handles;
    Imports imports;
    Allocations allocations;
    Later later;
    ResidualRecords residual;
    PeerAccess peers;
    Graphs graphs;
    Objects objects;
    Unseen unseen;

    /// Takes out what is known of a context that is about to end. Takes no memory. The caller holds
    /// contexts.alive alone. Afterwards its memory is freed (free_departed()), or all is put back.
    [[nodiscard]] Departed take(CUcontext context, bool is_primary) noexcept;
    void put_back(Departed departed) noexcept;
    /// A green context is about to end, which its primary one outlives: that has its memory, and its events,
    /// from now on. Returns the captures in its streams. Takes no memory.
    [[nodiscard]] Captures::Taken hand_on(const Green& green) noexcept;
};

/// The process's: made at the first question, which may come before the agent starts, and never freed. Once
/// the agent has started, a child of fork() asks for nothing (stop_intercepting()).
[[nodiscard]] inline Registry& books() noexcept {
    return immortal<Registry>();
}

} // namespace gpu_sleep::agent::registry
