// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The environment by which gpu-run tells the agent what to do. Children inherit it, and the agent with it.

#pragma once

namespace gpu_sleep::model::environment {

inline constexpr const char* k_capture =
    "GPU_SLEEP_CAPTURE";                                ///< 1: intercept the program's own allocations; 0
inline constexpr const char* k_name = "GPU_SLEEP_NAME"; ///< the name by which commands find the process
inline constexpr const char* k_group =
    "GPU_SLEEP_GROUP"; ///< the name of a group of processes that commands put to sleep together
inline constexpr const char* k_tag = "GPU_SLEEP_TAG"; ///< of intercepted allocations without another tag
inline constexpr const char* k_min_size =
    "GPU_SLEEP_MIN_SIZE"; ///< bytes; smaller allocations are left to the driver
inline constexpr const char* k_rules = "GPU_SLEEP_RULES";             ///< AllocationRules, as their text
inline constexpr const char* k_on_touch = "GPU_SLEEP_ON_TOUCH";       ///< wait, wake or fail
inline constexpr const char* k_touch_limit = "GPU_SLEEP_TOUCH_LIMIT"; ///< milliseconds
inline constexpr const char* k_make_room =
    "GPU_SLEEP_MAKE_ROOM"; ///< 1: a touch that wakes has others sleep where GPU memory is short; 0
inline constexpr const char* k_min_awake =
    "GPU_SLEEP_MIN_AWAKE"; ///< milliseconds since its last wake for which another is left alone then
inline constexpr const char* k_release_gil =
    "GPU_SLEEP_RELEASE_GIL";                          ///< 1: a thread that waits lets Python run; 0
inline constexpr const char* k_log = "GPU_SLEEP_LOG"; ///< error, warning, info or debug; see log::enabled()
inline constexpr const char* k_journal =
    "GPU_SLEEP_JOURNAL"; ///< 1: transitions are written to the journal; 0; or where the journal listens
inline constexpr const char* k_gate = "GPU_SLEEP_GATE"; ///< shut or checked
inline constexpr const char* k_retain =
    "GPU_SLEEP_RETAIN"; ///< bytes of host memory that contents may take while their memory is awake
inline constexpr const char* k_prepare =
    "GPU_SLEEP_PREPARE"; ///< seconds after which memory that does not change is prepared for; 0: never

inline constexpr const char* k_host_budget =
    "GPU_SLEEP_HOST_BUDGET"; ///< bytes of host memory that the user's processes may hold together for
                             ///< contents
inline constexpr const char* k_live_bytes =
    "GPU_SLEEP_LIVE_BYTES"; ///< what is placed in host memory as it is allocated: see parse_live_bytes()
inline constexpr const char* k_inhibit =
    "GPU_SLEEP_INHIBIT"; ///< milliseconds for which sleeps from outside are refused; 0: as long as it runs

inline constexpr const char* k_idle =
    "GPU_SLEEP_IDLE"; ///< milliseconds without work on the GPU after which the process goes to sleep itself
inline constexpr const char* k_idle_deep = "GPU_SLEEP_IDLE_DEEP"; ///< 1: deeply, where it can; 0
inline constexpr const char* k_idle_store =
    "GPU_SLEEP_IDLE_STORE"; ///< then: host or file, or TAG=STORE, separated by commas
inline constexpr const char* k_idle_directory = "GPU_SLEEP_IDLE_DIR"; ///< for those files, absolute
inline constexpr const char* k_on_stop = "GPU_SLEEP_ON_STOP";         ///< sleep or stop: what SIGTSTP does
inline constexpr const char* k_stop_grace =
    "GPU_SLEEP_STOP_GRACE"; ///< milliseconds by which such a sleep may put the stop off
inline constexpr const char* k_disable =
    "GPU_SLEEP_DISABLE"; ///< set, and not 0: the program's use of the GPU is left alone

} // namespace gpu_sleep::model::environment
