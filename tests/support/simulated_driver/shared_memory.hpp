// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that was exported, and what still holds it, in all processes that share the devices.

#pragma once

#include "base/fd.hpp"

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpu_sleep::sim {

enum class Holder {
    descriptor, ///< in whichever process, or on its way in a socket
    exporter,   ///< a handle or a mapping of the process that created the memory, which counts it
    importer,   ///< the same of a process that imported it
};

/// What the name of a file of shared memory says.
struct SharedName {
    int type = 0; ///< a CUmemLocationType
    int device = 0;
    int gpu = 0; ///< which it was at its exporter
    [[nodiscard]] static std::optional<SharedName> parse(const std::string& path);
    /// Nothing for the descriptor of another file.
    [[nodiscard]] static std::optional<SharedName> of(int descriptor);
};

/// A new file of shared memory, which has a name if the processes share a state file. Its descriptor holds it
/// as the exporter. Empty if the host refuses.
[[nodiscard]] UniqueFd make_shared(SharedName name, std::uint64_t bytes);

/// The file of that descriptor, opened anew: it holds the memory as `holder` until the last copy of it is
/// closed. Empty if the host refuses.
[[nodiscard]] UniqueFd hold(int descriptor, Holder holder);

/// Memory in use that no exporter counts.
struct SharedMemory {
    int gpu = 0;
    std::uint64_t bytes = 0;
    pid_t importer = 0; ///< who is charged; 0 where descriptors alone hold it
};
/// Needs SharedState::Lock.
[[nodiscard]] std::vector<SharedMemory> shared_memory();

} // namespace gpu_sleep::sim
