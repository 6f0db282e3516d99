// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The exit statuses of every command; gpu-sleep(1) describes them.

#pragma once

namespace gpu_sleep {

namespace exit_status {
inline constexpr int done = 0;
inline constexpr int failed_awake = 1;
inline constexpr int usage = 2;
inline constexpr int no_process = 3;
inline constexpr int timed_out = 4;
inline constexpr int not_permitted = 5;
inline constexpr int damaged = 6;
inline constexpr int failed_asleep = 7;
inline constexpr int no_host_memory = 8;
inline constexpr int outcome_unknown = 9;
} // namespace exit_status

/// The one that matters more to who asked several, of two exit statuses: what may be lost comes first, then
/// what is not known, and 0 last. One that has no place here matters more than all.
[[nodiscard]] constexpr int worse_of(int one, int other) noexcept {
    constexpr int k_worst_last[] = {
        exit_status::done,          exit_status::usage,         exit_status::no_process,
        exit_status::not_permitted, exit_status::failed_awake,  exit_status::no_host_memory,
        exit_status::timed_out,     exit_status::failed_asleep, exit_status::outcome_unknown,
        exit_status::damaged};
    for (const int status : k_worst_last) {
        if (status == one) return other;
        if (status == other) return one;
    }
    return one;
}

} // namespace gpu_sleep
