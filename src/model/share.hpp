// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What one agent asks another for when a program opens memory of another's by a legacy CUDA IPC handle.

#pragma once

#include "base/units.hpp"

#include <array>
#include <cstdint>

namespace gpu_sleep::model {

/// Asks for memory that the program has shared; what its handle says of it.
struct ShareRequest {
    std::array<std::uint64_t, 2> secret{}; ///< of the process that shares
    std::uint64_t address = 0;             ///< of the allocation there
    std::uint64_t allocation = 0;          ///< its number: addresses are used again
    friend bool operator==(const ShareRequest&, const ShareRequest&) = default;
};

/// The answer. The memory comes along as a descriptor.
struct Shared {
    Bytes bytes = 0;  ///< of the memory
    Bytes offset = 0; ///< of the allocation in it
    friend bool operator==(const Shared&, const Shared&) = default;
};

} // namespace gpu_sleep::model
