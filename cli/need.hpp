// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Room on GPUs that gpu-reclaim --need makes, and gpu-run --need before its command starts.

#pragma once

#include "cli/options.hpp"
#include "control/need.hpp"

namespace gpu_sleep::cli {

/// Puts processes to sleep, and says which, or why not enough can be. Returns the exit status.
[[nodiscard]] int run_need(control::Need need, const OutputOptions& output);

/// `standard`: what holds without it.
[[nodiscard]] usage::Row wait_row(std::optional<Milliseconds>& wait, std::string_view standard);

/// The same before a command starts, on each GPU that it will see by CUDA_VISIBLE_DEVICES and
/// CUDA_DEVICE_ORDER. Speaks on standard error, as `program`. Returns the exit status: 0 if each of them has
/// so much free; otherwise nobody was put to sleep, unless somebody else took the room meanwhile. `whom`: the
/// command's name, for the history. Tries for as long as `wait`; unset: for up to half a minute if processes
/// only have not been awake for long enough.
[[nodiscard]] int make_room_for_command(const std::string& program, const std::string& whom, Bytes bytes,
                                        Milliseconds min_awake, std::optional<Milliseconds> wait);

} // namespace gpu_sleep::cli
