// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The memory that torch_memory_saver's callers pause and resume, by their tags, as memory of the agent's.
// Python's objects and the functions of their names are elsewhere.

#pragma once

#include "gpu_sleep/gpu_sleep.h"

#include <cstddef>
#include <string>

namespace gpu_sleep::saver {

/// How a thread's allocations are to be. A new thread begins with what the environment says.
struct Config {
    bool is_region; ///< whether they are to be pausable at all
    bool cpu_backup;
    bool disk_backup;
    std::string tag = "default";
    std::string cpu_backup_backend; ///< only told back: the agent decides what it pins

    Config();
};
[[nodiscard]] Config& config();

/// A function of the CUDA runtime that the program has loaded, not this library's of the same name; null if
/// there is none.
[[nodiscard]] void* runtime_function(const char* name);

/// Memory on the device by the calling thread's config. Errors: those of gpu_sleep_alloc().
[[nodiscard]] gpu_sleep_status allocate(void** pointer, std::size_t bytes, int device);
/// Errors: those of gpu_sleep_free(). Not_owned also for what the program has allocated by other means.
[[nodiscard]] gpu_sleep_status release(void* pointer);

} // namespace gpu_sleep::saver
