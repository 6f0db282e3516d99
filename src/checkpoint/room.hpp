// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How much memory of a GPU a process needs to come back, by what its checkpoint has made free there, and how
// several set room aside on it. A restore that finds less loses the process. Who keeps the locks that tell of
// room is client::GpuQueue.

#pragma once

#include "base/error.hpp"
#include "base/units.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>

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

// ---- Room that is set aside

/// Bytes by the UUID of a GPU.
using BytesByGpu = std::map<std::string, Bytes>;

/// What is left of `free` on that GPU besides `taken`.
[[nodiscard]] Bytes free_besides(const BytesByGpu& taken, const std::string& uuid, Bytes free);

/// How a process has the lock of a GPU.
enum class Hold : std::uint8_t { none, shared, alone };

/// What a process has of a GPU that others must know of.
struct Claim {
    bool has_lock = false;    ///< alone: others take no memory, and set no room aside
    bool is_counting = false; ///< looks how much is free; nobody else does meanwhile
    Bytes room = 0;           ///< set aside

    [[nodiscard]] Hold hold() const noexcept {
        if (has_lock) return Hold::alone;
        return is_counting || room != 0 ? Hold::shared : Hold::none;
    }
};

/// What a process that counts is to leave to others, of which so many have set `bytes` aside. Nothing: it is
/// to wait until one of them is back.
[[nodiscard]] std::optional<Bytes> left_to_others(std::uint32_t processes, Bytes bytes) noexcept;

/// What becomes of a process that has counted: true, its `room` is set aside, if that `is_set`. False: others
/// have set aside what is missing, so that it may be there when they are back. Errors: that of `room`.
[[nodiscard]] Result<bool> judge_count(const Result<BytesByGpu>& room, bool is_set,
                                       const BytesByGpu& of_others);

} // namespace gpu_sleep::checkpoint
