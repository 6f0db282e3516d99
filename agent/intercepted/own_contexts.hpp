// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The contexts that the program made or holds, and what others of this module look up of them.

#pragma once

#include "base/thread_safety.hpp"
#include "common/lock_order.hpp"
#include "driver/api.hpp"

#include <cuda.h>

#include <map>
#include <vector>

namespace gpu_sleep::agent {
class ProgramMemory;
}

namespace gpu_sleep::agent::intercepted {

class PendingWork;

[[nodiscard]] std::vector<CUcontext> own_contexts() noexcept;
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
/// until it has waited.
void note_work_on(ProgramMemory& memory, int device, PendingWork& work);

// What follows is for contexts.cpp, which changes it.

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
    static OwnContexts& instance();
};

/// Which primary context a device has: a later one may get the same handle.
struct Primary {
    CUcontext context = nullptr; ///< null: none is active
    unsigned long long id = 0;
    friend bool operator==(const Primary&, const Primary&) = default;
};

[[nodiscard]] Primary primary_of(const driver::Api& api, CUdevice device);

} // namespace gpu_sleep::agent::intercepted
