// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Exceptions from the table of errors.

#include "cli/show/advice.hpp"

namespace gpu_sleep::cli {
std::string advice_from(std::string_view program, ErrorCode code, const control::Outcome* outcome) {
    if (outcome && code == ErrorCode::stopped)
        return "to resume it: " + control::ProcFs().how_to_go_on(outcome->process);
    const bool is_door = program == "gpu-sleep-http";
    const bool is_wake = outcome && outcome->asked == model::Operation::wake;
    const bool lacks_room = outcome && code == ErrorCode::out_of_device_memory;
    const bool is_by_driver = lacks_room && outcome->by_driver && is_wake;
    if (is_door && (is_by_driver || (lacks_room && outcome->has_made_room)))
        return "free GPU memory, or start the door with a longer --wait";
    if (lacks_room && outcome->has_made_room)
        return peers::error_of(outcome->answer)->retry_seconds
                   ? "free GPU memory, or give gpu-wake a longer --wait, or --min-awake 0s"
                   : "free GPU memory, or give gpu-wake a longer --wait";
    if (is_by_driver || (lacks_room && outcome->nobody_can_sleep && !is_door))
        return outcome->has_waited ? "free GPU memory, or give gpu-wake a longer --wait"
                                   : "free GPU memory, or retry for longer with --wait 60s";
    if (is_door && is_wake && code == ErrorCode::out_of_device_memory)
        return "free GPU memory, or start the door with --make-room or a longer --wait";
    if (outcome && outcome->has_waited && code == ErrorCode::out_of_device_memory)
        return "free GPU memory, or give gpu-wake --make-room or a longer --wait";
    if ((program == "gpu-sleep" || program == "gpu-reclaim" || is_door) &&
        code == ErrorCode::out_of_device_memory)
        return "free GPU memory, and try again"; // which the copying takes a little of
    if (program == "gpu-run" && code == ErrorCode::out_of_device_memory)
        return "end what holds it, or ask for less with --need";
    const bool has_timeout = program != "gpu-run" && program != "gpu-inhibit" && !is_door;
    if (!has_timeout && code == ErrorCode::timed_out) return "try again";
    const bool lacks_host_memory = code == ErrorCode::out_of_host_memory;
    if ((program == "gpu-run" || program == "gpu-snapshot" || is_door) && lacks_host_memory)
        return "free host memory"; // they have no --level
    // Do not advise to drop what is asleep because there is too little memory to wake it.
    if (program == "gpu-wake" && lacks_host_memory)
        return "free host memory, or raise the process's limit, and wake it again";
    const bool takes_all = program == "gpu-sleep" || program == "gpu-wake" || program == "gpu-inhibit";
    if (takes_all && code == ErrorCode::ambiguous_name) return "name one by its pid, or all of them by --all";
    // It reads files of whatever origin, and changes no process.
    if (program == "gpu-snapshot" && code != ErrorCode::out_of_disk && code != ErrorCode::internal) return {};
    return std::string(traits(code).advice);
}

} // namespace gpu_sleep::cli
