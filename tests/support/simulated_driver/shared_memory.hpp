// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that was exported, and what still holds it, in all processes that share the devices.

#pragma once

#include "base/fd.hpp"

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace gpu_sleep::sim {

enum class Holder : char {
    descriptor = 'd', ///< in whichever process, or on its way in a socket
    exporter = 'e',   ///< a handle or a mapping of the process that created the memory, which counts it
    importer = 'i',   ///< the same of a process that imported it
};

/// A socket that holds shared memory until the last of its descriptors is closed, and leads to `file`, where
/// the memory lies. Its name says so to every process, in /proc/net/unix. Two of them are two files, which
/// F_DUPFD_QUERY and kcmp tell apart. Empty if the host refuses.
[[nodiscard]] UniqueFd make_share(int file, int device, Holder holder);

/// The file that a descriptor of make_share() leads to; empty for any other.
[[nodiscard]] UniqueFd file_of_share(int descriptor);

/// Memory in use that no exporter counts.
struct SharedMemory {
    int gpu = 0;
    std::uint64_t bytes = 0;
    pid_t importer = 0; ///< who is charged; 0 where descriptors alone hold it
};
/// Needs SharedState::Lock.
[[nodiscard]] std::vector<SharedMemory> shared_memory();

} // namespace gpu_sleep::sim
