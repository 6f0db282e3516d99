// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The request of one agent to another when its program opens memory of the other's by a legacy CUDA IPC
// handle.

#pragma once

#include "base/units.hpp"

#include <array>
#include <cstdint>

namespace gpu_sleep::model {

/// Asks for memory that the other program has shared, by the values in its handle.
struct ShareRequest {
    std::array<std::uint64_t, 2> secret{}; ///< of the process that shares
    std::uint64_t address = 0;             ///< of the allocation there
    std::uint64_t allocation = 0;          ///< its number, because addresses are reused
    friend bool operator==(const ShareRequest&, const ShareRequest&) = default;
};

/// The answer. The memory itself comes with it as a descriptor.
struct Shared {
    Bytes bytes = 0;  ///< of the memory
    Bytes offset = 0; ///< of the allocation in it
    friend bool operator==(const Shared&, const Shared&) = default;
};

} // namespace gpu_sleep::model
