// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The contexts that the program made or holds, the mutex over which they live, and whether the GPU works in
// them.

#pragma once

#include "base/memory.hpp"
#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "driver/context.hpp"

#include <cstdint>
#include <cuda.h>
#include <map>
#include <shared_mutex>
#include <vector>

namespace gpu_sleep::agent {
class ProgramMemory;
}

namespace gpu_sleep::agent::intercepted {

/// Held alone while a context ends, and shared while we work in contexts that the program may end meanwhile:
/// touching one that is gone corrupts memory. Shared also while we hold a primary context, unless the gate is
/// shut for a transaction: our letting go must not be what ends it. It comes before the mutex of the pools.
/// A thread may hold it shared twice, as one that moves a running program does: glibc's lets readers pass
/// writers that wait. Source: pthread_rwlockattr_setkind_np(3).
[[nodiscard]] std::shared_mutex& contexts_mutex() noexcept;
/// Waits until nobody waits to hold it alone, or for a bounded time. Before it is held shared to wait for the
/// GPU: many who do so one after the other would keep a context from ending for ever.
void let_contexts_end() noexcept;
/// Whether somebody waits to hold it alone, for whoever holds it shared for long.
[[nodiscard]] bool context_waits_to_end() noexcept;
/// Holds contexts_mutex() alone, with precedence over those who call let_contexts_end().
class ContextsAlone {
public:
    ContextsAlone();
    ContextsAlone& operator=(ContextsAlone&&) = delete;
    ~ContextsAlone();
};

class PendingWork;

/// The program's own, and these. May throw for want of memory.
[[nodiscard]] std::vector<CUcontext> all_contexts(const std::vector<driver::PrimaryContext>& primary);
/// Makes a primary context that is in use current on the calling thread, which is ours and ends soon:
/// what the runtime is asked there would make one on the first device otherwise, for good. Never waits. False
/// where there is none, or one ends just now.
[[nodiscard]] bool enter_primary_context() noexcept;
/// The program's own contexts of the device. They live as long as the caller holds contexts_mutex().
[[nodiscard]] std::vector<CUcontext> own_contexts_of(int device);
/// The context whose end takes what is allocated in `context`: the primary one of a green one, else itself.
[[nodiscard]] CUcontext owner_of_memory_in(CUcontext context);
/// Whether the program holds the device's primary context, so that its end is seen.
[[nodiscard]] bool holds_primary(int device);
/// Notes all work on the device. The caller holds capture_order(), with no capture open, and contexts_mutex()
/// until it has waited. Amid captures it needs neither of the first two. False as PendingWork::note().
bool note_work_on(ProgramMemory& memory, int device, PendingWork& work);

// The rest is for contexts.cpp, which changes the records.

struct Green {
    CUcontext context = nullptr; ///< null where the driver did not say
    CUcontext primary = nullptr;
    CUdevice device = 0;
};

/// The contexts that the program made, and the primary ones that it holds.
struct OwnContexts {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<CUcontext, int> contexts GPU_SLEEP_GUARDED_BY(mutex); ///< and their devices
    /// How often the program holds each, by green ones too. A reset changes nothing of that.
    std::map<CUdevice, unsigned> primaries GPU_SLEEP_GUARDED_BY(mutex);
    std::map<CUgreenCtx, Green> greens GPU_SLEEP_GUARDED_BY(mutex);
};

/// Which primary context a device has: a later one may get the same handle.
struct Primary {
    CUcontext context = nullptr; ///< null: none is active
    unsigned long long id = 0;
    friend bool operator==(const Primary&, const Primary&) = default;
};

[[nodiscard]] Primary primary_of(const driver::Api& api, CUdevice device);

enum class RunningWork : std::uint8_t {
    none,    ///< all that was given to the GPU is done
    some,    ///< not all of it, or that could not be asked just now
    unknown, ///< the driver cannot be asked (before 12.5)
};

/// Whether the GPU has done all that the program gave it, in all contexts. Breaks no capture and keeps none
/// from beginning; waits for nobody, and for the GPU for some milliseconds at most. May throw for want of
/// memory. Source: CUDA Driver API, cuCtxRecordEvent.
[[nodiscard]] RunningWork find_running_work(const driver::Api& api);

} // namespace gpu_sleep::agent::intercepted
