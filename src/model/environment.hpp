// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The environment by which gpu-run tells the agent what to do. Children inherit it, and the agent with it.

#pragma once

#include <string_view>

namespace gpu_sleep::model::environment {

/// "1": the program's own allocations are intercepted; or "0".
inline constexpr const char* k_capture = "GPU_SLEEP_CAPTURE";
/// The name by which commands find the process.
inline constexpr const char* k_name = "GPU_SLEEP_NAME";
/// The name of a group of processes that commands put to sleep together.
inline constexpr const char* k_group = "GPU_SLEEP_GROUP";
/// The tag of intercepted allocations that have no other.
inline constexpr const char* k_tag = "GPU_SLEEP_TAG";
/// Bytes; smaller allocations are left to the driver.
inline constexpr const char* k_min_size = "GPU_SLEEP_MIN_SIZE";
/// AllocationRules, as their text.
inline constexpr const char* k_rules = "GPU_SLEEP_RULES";
/// "wait", "wake" or "fail": what using sleeping memory does.
inline constexpr const char* k_on_touch = "GPU_SLEEP_ON_TOUCH";
/// Milliseconds for which that waits.
inline constexpr const char* k_touch_limit = "GPU_SLEEP_TOUCH_LIMIT";
/// "1": where GPU memory is short, a touch that wakes puts others to sleep; or "0".
inline constexpr const char* k_make_room = "GPU_SLEEP_MAKE_ROOM";
/// Milliseconds for which another process is left awake then, from its last wake on.
inline constexpr const char* k_min_awake = "GPU_SLEEP_MIN_AWAKE";
/// "1": a thread that waits lets Python run; or "0".
inline constexpr const char* k_release_gil = "GPU_SLEEP_RELEASE_GIL";
/// "error", "warning", "info" or "debug"; see log::enabled().
inline constexpr const char* k_log = "GPU_SLEEP_LOG";
/// "1": transitions are written to the journal; or "0"; or the path of the journal's socket.
inline constexpr const char* k_journal = "GPU_SLEEP_JOURNAL";
/// "shut" or "checked".
inline constexpr const char* k_gate = "GPU_SLEEP_GATE";
/// Bytes of host memory that contents may take while their memory is awake.
inline constexpr const char* k_retain = "GPU_SLEEP_RETAIN";
/// Seconds after which host memory is prepared for memory that does not change; 0: never.
inline constexpr const char* k_prepare = "GPU_SLEEP_PREPARE";

/// Bytes of host memory that the user's processes may hold together for contents.
inline constexpr const char* k_host_budget = "GPU_SLEEP_HOST_BUDGET";
/// Sizes of the tags that are placed in host memory as they are allocated: see parse_live_bytes().
inline constexpr const char* k_live_bytes = "GPU_SLEEP_LIVE_BYTES";
/// Milliseconds for which sleeps from outside are refused; 0: as long as the process runs.
inline constexpr const char* k_inhibit = "GPU_SLEEP_INHIBIT";

/// Milliseconds without work on the GPU after which the process goes to sleep itself.
inline constexpr const char* k_idle = "GPU_SLEEP_IDLE";
/// "1": then it sleeps deeply, where it can; or "0".
inline constexpr const char* k_idle_deep = "GPU_SLEEP_IDLE_DEEP";
/// Where its contents go then: "host" or "file", or TAG=STORE, separated by commas.
inline constexpr const char* k_idle_store = "GPU_SLEEP_IDLE_STORE";
/// The directory for those files, absolute.
inline constexpr const char* k_idle_directory = "GPU_SLEEP_IDLE_DIR";
/// "sleep" or "stop": what SIGTSTP does.
inline constexpr const char* k_on_stop = "GPU_SLEEP_ON_STOP";
/// Milliseconds by which such a sleep may delay the stop.
inline constexpr const char* k_stop_grace = "GPU_SLEEP_STOP_GRACE";
/// The notebook that a kernel of Jupyter runs, and the job of Slurm: set by these.
inline constexpr const char* k_notebook = "JPY_SESSION_NAME";
inline constexpr const char* k_job = "SLURM_JOB_ID";
/// Set, and not 0: the program's use of the GPU is left alone
inline constexpr const char* k_disable = "GPU_SLEEP_DISABLE";
[[nodiscard]] constexpr bool disables(std::string_view value) noexcept {
    return !value.empty() && value != "0";
}

} // namespace gpu_sleep::model::environment
