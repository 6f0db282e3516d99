// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-reclaim --need and gpu-run --need: processes sleep until a GPU has room.

#pragma once

#include "cli/options.hpp"
#include "control/need.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace gpu_sleep::cli {

/// Puts processes to sleep, and says which, or why not enough can be. Returns the exit status.
[[nodiscard]] int run_need(const control::Need& need, const OutputOptions& output);

/// `standard`: what holds without it.
[[nodiscard]] usage::Row wait_row(std::optional<Milliseconds>& wait, std::string_view standard);

/// The same before a command starts, on each GPU that it will see by CUDA_VISIBLE_DEVICES and
/// CUDA_DEVICE_ORDER. Speaks on standard error, as `program`. Returns the exit status: 0 if each of them has
/// so much free; otherwise nobody was put to sleep, unless somebody else took the room meanwhile. Tries for
/// as long as `wait`; unset: for up to half a minute if processes only have not been awake for long enough.
[[nodiscard]] int make_room_for_command(const std::string& program, Bytes bytes, Milliseconds min_awake,
                                        std::optional<Milliseconds> wait);

} // namespace gpu_sleep::cli
