// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-reclaim --need and gpu-run --need: processes sleep until a GPU has room.

#pragma once

#include "cli/options.hpp"
#include "control/process_info.hpp"
#include "peers/room.hpp"

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

namespace gpu_sleep::cli {

struct Need {
    Bytes bytes = 0;             ///< that are to be free
    std::string gpu;             ///< a number or a UUID; empty: the only one
    std::string target;          ///< a pid or a name: only these processes sleep; empty: all
    std::optional<uid_t> user;   ///< whose processes; unset: all that may be asked
    model::SleepRequest request; ///< see peers::room_request()
    OutputOptions output;
    /// Puts what holds for one process alone into its request; may be empty.
    std::function<void(const control::Process&, const model::Report&, model::SleepRequest&)> adapt{};
};

/// Puts processes to sleep, and says which, or why not enough can be. Returns the exit status.
[[nodiscard]] int run_need(const Need& need);

/// The same before a command starts, on each GPU that it will see by CUDA_VISIBLE_DEVICES and
/// CUDA_DEVICE_ORDER. Speaks on standard error, as `program`. Returns the exit status: 0 if each of them has
/// so much free; otherwise nobody was put to sleep, unless somebody else took the room meanwhile.
[[nodiscard]] int make_room_for_command(const std::string& program, Bytes bytes, Milliseconds min_awake);

} // namespace gpu_sleep::cli
