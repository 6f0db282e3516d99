// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What is left of the host's memory, as the machine and its control groups say.

#pragma once

#include "base/units.hpp"

#include <filesystem>

namespace gpu_sleep::store {

/// Where the figures are read from; the defaults are the real ones, tests name others.
struct HostMemorySources {
    std::filesystem::path proc = "/proc";
    std::filesystem::path cgroup = "/sys/fs/cgroup";
    std::string process = "self"; ///< whose headroom: a name in `proc`
};

struct Headroom {
    Bytes bytes = 0;        ///< what may still be taken
    std::string limited_by; ///< the limit, for a message: "free host memory", or a control group's limit
    /// A file that all processes under this limit can see, as far as they see each other, for locks of ours.
    /// Empty without a limit.
    std::filesystem::path shared{};
    bool is_unknown = false; ///< some limit could not be read, so that nothing is left
};

/// The smallest of: MemAvailable, and for the process's control group and each of its ancestors (version 2
/// and version 1) the limit less what is used, where page cache and slabs that the kernel can take back count
/// as free. Swap does not count: pinned memory is never swapped. A figure that is missing, or hidden from the
/// process for good, does not limit; with none at all the headroom is the largest number there is. Where a
/// file is there and cannot be read, or there is no /proc, nothing is left: the kernel kills a process at a
/// limit that it has not seen. Thread-safe; opens and reads a handful of small files. Source: proc(5),
/// Control Group v2 ("Memory"), Memory Resource Controller (version 1).
[[nodiscard]] Headroom host_headroom(const HostMemorySources& sources = {});

/// How much of the last ten seconds some program has waited for memory, in percent: on the machine, or in the
/// process's control group, if that is more. 0 where the kernel does not tell. Thread-safe. Source: Pressure
/// Stall Information, /proc/pressure/memory and memory.pressure ("some", "avg10").
[[nodiscard]] unsigned memory_pressure(const HostMemorySources& sources = {});

/// The address space that the process's own limit (RLIMIT_AS) leaves; the largest number if there is no limit
/// or it cannot be read. Source: proc(5), "limits" and "status".
[[nodiscard]] Bytes address_space_left(const HostMemorySources& sources = {});

} // namespace gpu_sleep::store
