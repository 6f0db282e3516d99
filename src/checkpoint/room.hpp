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

/// Returns the room that a process without an agent needs on a GPU: the larger of two figures. `used` is the
/// GPU memory that NVML counted for it; empty if NVML knows of no GPU that it uses, because it may number
/// processes in another way. `freed` is how much its checkpoint made free; it is wrong if others have taken
/// or given back memory meanwhile.
[[nodiscard]] Bytes need_of_all(std::optional<Bytes> used, Bytes freed) noexcept;

/// The memory that the driver takes of a GPU besides the memory that the agent gives back.
struct Rest {
    Bytes bytes = 0; ///< that it is known to take
    Bytes more = 0;  ///< what the checkpoint made free besides, or others did meanwhile
};
/// By the same two figures; `used`: 0 where it is not known.
[[nodiscard]] Rest rest_of(Bytes used, Bytes freed) noexcept;
/// Returns the room that a process needs to come back with `rest` and then to wake `waking`: during the
/// restore, the room for `waking` is free.
[[nodiscard]] Bytes need_of(const Rest& rest, Bytes waking) noexcept;

// ---- Room that is set aside

/// Bytes by the UUID of a GPU.
using BytesByGpu = std::map<std::string, Bytes>;

/// Returns what `taken` leaves of `free` on that GPU.
[[nodiscard]] Bytes free_besides(const BytesByGpu& taken, const std::string& uuid, Bytes free);

/// How a process has the lock of a GPU.
enum class Hold : std::uint8_t { none, shared, alone };

/// The claim of a process on a GPU, as others must know it.
struct Claim {
    bool has_lock = false;    ///< alone: others take no memory, and set no room aside
    bool is_counting = false; ///< looks how much is free; nobody else does meanwhile
    Bytes room = 0;           ///< set aside

    [[nodiscard]] Hold hold() const noexcept {
        if (has_lock) return Hold::alone;
        return is_counting || room != 0 ? Hold::shared : Hold::none;
    }
};

/// Returns how much a process that counts has to leave to others, if `processes` of them have set `bytes`
/// aside. Empty: it has to wait until one of them is back.
[[nodiscard]] std::optional<Bytes> left_to_others(std::uint32_t processes, Bytes bytes) noexcept;

/// Decides for a process that has counted. True: its `room` is set aside, if `is_set`. False: others have set
/// aside the memory that it lacks; it may be there when they are back. Errors: that of `room`.
[[nodiscard]] Result<bool> judge_count(const Result<BytesByGpu>& room, bool is_set,
                                       const BytesByGpu& of_others);

} // namespace gpu_sleep::checkpoint
