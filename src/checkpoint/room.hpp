// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How much memory of a GPU a process needs to come back, by what its checkpoint has made free there. A
// restore that finds less loses the process.

#pragma once

#include "base/units.hpp"

#include <optional>

namespace gpu_sleep::checkpoint {

/// What one without an agent takes of a GPU. `used`: what NVML says that it had there; nothing where NVML
/// knows of no GPU that it uses, for it may number processes in another way. `freed`: what its checkpoint has
/// made free, as far as others have not taken or given back memory meanwhile. So the larger figure counts.
[[nodiscard]] Bytes need_of_all(std::optional<Bytes> used, Bytes freed) noexcept;

/// What the driver takes of a GPU besides the memory that the agent gives back.
struct Rest {
    Bytes bytes = 0; ///< that it is known to take
    Bytes more = 0;  ///< what the checkpoint made free besides, or others did meanwhile
};
/// By the same two figures; `used`: 0 where it is not known.
[[nodiscard]] Rest rest_of(Bytes used, Bytes freed) noexcept;
/// What it needs to come back with `rest`, and then to wake `waking`: while the driver restores it the room
/// of that is free.
[[nodiscard]] Bytes need_of(const Rest& rest, Bytes waking) noexcept;

} // namespace gpu_sleep::checkpoint
