// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The driver's objects that the program has, and which of its work was done when a deep sleep began.

#pragma once

#include "base/thread_safety.hpp"
#include "base/units.hpp"
#include "common/lock_order.hpp"

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace gpu_sleep::agent::registry {

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
/// The memory of the one device that the process uses, as it was when it fell deeply asleep.
struct DeviceMemory {
    Bytes free = 0;
    Bytes total = 0;
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
    std::optional<DeviceMemory> memory GPU_SLEEP_GUARDED_BY(mutex);
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

} // namespace gpu_sleep::agent::registry
