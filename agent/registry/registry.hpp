// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The one root of what is known of the program's use of the driver, and the smaller books.

#pragma once

#include "driver/context.hpp"
#include "model/unseen_libraries.hpp"
#include "registry/contexts.hpp"
#include "registry/handles.hpp"
#include "registry/pools.hpp"
#include "registry/residual.hpp"

#include <unordered_map>

namespace gpu_sleep::agent::registry {

/// The addresses that each node of an executable graph names. A node with a child graph has the addresses of
/// that: if it changes, all of them are replaced.
struct Graphs {
    using Nodes = std::unordered_map<CUgraphNode, gate::Named>;
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::unordered_map<CUgraphExec, Nodes> named GPU_SLEEP_GUARDED_BY(mutex);
};

/// An object of the program whose destruction waits for no other thread.
enum class Object : std::uint8_t {
    none,
    stream,
    event,
    memory,
    host_memory,
    array,
    mipmapped_array,
    module,
    library,
    graph_exec,
    texture,
    surface,
    // Objects that other processes share. Their destruction is never put off.
    shared_event,
    shared_pool,
    shared_memory,
    external_memory,
    external_semaphore,
};

/// As cuDevicePrimaryCtxGetState gives it.
struct PrimaryState {
    unsigned flags = 0;
    int active = 0;
};
/// Where and how an object was made.
struct Made {
    CUcontext context = nullptr; ///< where it was made; null: not known
    bool is_done = false;        ///< its work, while what is done is known
    bool was_waited_for = false; ///< meanwhile
};

struct Objects {
    using Key = std::pair<Object, std::uint64_t>;
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<Key, Made> all GPU_SLEEP_GUARDED_BY(mutex);
    /// A context whose work was done when the deep sleep began.
    struct Done {
        std::optional<CUdevice> device;
        bool was_waited_for = false; ///< since
    };
    std::map<CUcontext, Done> done GPU_SLEEP_GUARDED_BY(mutex);
    std::map<CUdevice, PrimaryState> primary GPU_SLEEP_GUARDED_BY(mutex);
    /// Of the one device that the process uses, as it was when it fell deeply asleep.
    std::optional<driver::MemoryInfo> memory GPU_SLEEP_GUARDED_BY(mutex);
    std::atomic<bool> is_known{false}; ///< what is done

    /// The context takes what was made in it with it, but for pools, which belong to devices, and memory from
    /// outside CUDA, which may be mapped in another context.
    void end_with(CUcontext context) noexcept {
        const MutexLock lock(mutex);
        std::erase_if(all, [=](const auto& each) {
            const auto kind = each.first.first;
            return each.second.context == context && kind != Object::shared_pool &&
                   kind != Object::external_memory;
        });
    }
};

/// Use of the driver that the hooks do not see.
struct Unseen {
    /// Calls that this build does not know: room for all that the hooks tell apart, and one for the others;
    /// null behind the last. Names live as long as the process.
    std::array<std::atomic<const char*>, 257> calls{};
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    /// The findings of the last look at all libraries' calls.
    std::vector<model::UnseenUse> bypassing GPU_SLEEP_GUARDED_BY(mutex);

    /// Notes such a call, inside the gate: who closes it, and looks then, sees the note. Takes no memory.
    void note_call(const char* name) noexcept {
        for (auto& each : calls) {
            const char* noted = nullptr;
            if (each.compare_exchange_strong(noted, name) || noted == name) return;
        }
    }
};

/// Whether the end of the context takes the memory: that of a pool outlives contexts, but for the device's
/// primary one, which takes everything with it.
template <class Memory>
[[nodiscard]] constexpr bool dies_with(const Memory& memory, CUcontext context, bool is_primary) noexcept {
    return memory.context == context && (is_primary || !memory.pool);
}

/// All that was known of a context, out of the books while it may end, for another may get its handle at
/// once.
struct Departed {
    CUcontext context = nullptr;
    bool is_primary = false;
    Allocations::Taken allocations{}; ///< that die with it
    Allocations::Taken later{};       ///< those that are freed later, and what was freed in it
    Captures::Taken captures{};
    Contexts::Record record{};
    ResidualRecords::Taken residual{};
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
    /// The devices that may reach each one's plain memory: cuCtxEnablePeerAccess.
    std::array<std::atomic<driver::DeviceMask>, driver::k_max_devices> peers{};
    Graphs graphs;
    Objects objects;
    Unseen unseen;

    /// Takes out what is known of a context that is about to end. The caller holds contexts.alive alone until
    /// the context has gone(), or what is known is put back. None of these takes memory.
    [[nodiscard]] Departed take(CUcontext context, bool is_primary) noexcept;
    /// Returns what is to be freed. No work uses it any more.
    [[nodiscard]] Allocations::Taken gone(Departed departed) noexcept;
    void put_back(Departed departed) noexcept;
    /// A green context is about to end, which its primary one outlives: that has its memory, and its events,
    /// from now on. Returns the captures in its streams. Takes no memory.
    [[nodiscard]] Captures::Taken hand_on(const Green& green) noexcept;
};

/// Null before the first use, and in a child of fork() until it begins anew.
inline constinit std::atomic<Registry*> g_books{nullptr};
/// Makes them, unless another thread was faster.
[[nodiscard]] Registry& make_books() noexcept;

/// The process's: made at the first question, which may come before the agent starts, and never freed.
[[nodiscard]] inline Registry& books() noexcept {
    auto* const made = g_books.load(std::memory_order_acquire);
    return made ? *made : make_books();
}
/// In a child of fork(): what its parent has is not the child's, and no thread is left that would give the
/// mutexes back.
inline void begin_anew_in_child() noexcept {
    g_books = nullptr;
}

} // namespace gpu_sleep::agent::registry
