// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How much host memory this process may still take before the kernel, or its control group, would kill
// somebody.

#pragma once

#include "base/units.hpp"

#include <filesystem>
#include <string>

namespace gpu_sleep::store {

/// Where the figures are read from; the defaults are the real ones, tests name others.
struct HostMemorySources {
    std::filesystem::path proc = "/proc";
    std::filesystem::path cgroup = "/sys/fs/cgroup";
};

struct Headroom {
    Bytes bytes = 0; ///< what may still be taken
    std::string
        limited_by; ///< what sets that limit, for a message: "free host memory", or a control group's limit
    /// A file that all whom it limits can see, as far as they see each other; nobody but us locks it. Empty
    /// where nothing limits.
    std::filesystem::path shared{};
};

/// The smallest of: MemAvailable, and for the process's control group and each of its ancestors (version 2
/// and version 1) the limit less what is used, where page cache and slabs that the kernel can take back count
/// as free. Swap does not count: pinned memory is never swapped. A figure that cannot be read does not limit;
/// with none at all the headroom is the largest number there is. Thread-safe; opens and reads a handful of
/// small files. Source: proc(5), Control Group v2 ("Memory"), Memory Resource Controller (version 1).
[[nodiscard]] Headroom host_headroom(const HostMemorySources& sources = {});

/// The same without `reserve`, which is left to everybody else.
[[nodiscard]] Headroom host_headroom_beyond(Bytes reserve);

/// What the process's own limit leaves it of address space (RLIMIT_AS); the largest number there is without
/// one, or where that cannot be read. Source: proc(5), "limits" and "status".
[[nodiscard]] Bytes address_space_left(const HostMemorySources& sources = {});

} // namespace gpu_sleep::store
