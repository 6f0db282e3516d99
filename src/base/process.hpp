// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How an agent's socket is named after its user and its process: the rules that agent and commands share.

#pragma once

#include "base/result.hpp"

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace gpu_sleep {

/// What the names of all agent directories begin with, beneath /tmp.
inline constexpr std::string_view k_agent_directory_prefix = "gpu-sleep-";

/// "/tmp/gpu-sleep-UID": fixed, so that cron finds it, and outside of what a logout removes. `uid` as the
/// process's own user namespace sees it. Where somebody else has taken that name, a dot and random digits
/// follow it.
[[nodiscard]] std::string agent_directory(uid_t uid);

/// A process that cannot be mistaken for a later one of the same number.
struct ProcessIdentity {
    pid_t pid = 0;
    std::uint64_t start_time = 0; ///< clock ticks after boot, field 22 of /proc/PID/stat
    friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

/// The name of the agent's thread that answers: the first as long as the process bears the name that its
/// environment gave it, the second once it has named itself. So that a process which answers nobody, because
/// it is stopped, need not be asked for its name. At most 15 characters; all begin with the first.
inline constexpr const char* k_control_thread = "gpu-sleep-ctl";
inline constexpr const char* k_control_thread_renamed = "gpu-sleep-ctl+";
/// Its name once the process has begun to end, and has no socket any more.
inline constexpr const char* k_control_thread_ending = "gpu-sleep-ctl-";

/// "PID-STARTTIME.sock", as the process's own namespaces see both.
[[nodiscard]] std::string agent_socket_name(pid_t pid, std::uint64_t start_time);

/// The reverse; nothing for any other name.
[[nodiscard]] std::optional<ProcessIdentity> parse_agent_socket_name(std::string_view name);

/// The start time of `pid`. `proc` is where the proc file system is mounted. Errors: no_process, io_failed.
/// Source: proc_pid_stat(5).
[[nodiscard]] Result<std::uint64_t> start_time_of(pid_t pid, const std::filesystem::path& proc = "/proc");

inline constexpr std::size_t k_boot_id_digits = 32;

/// Whether `text` may be what boot_id() gives.
[[nodiscard]] bool is_boot_id(std::string_view text) noexcept;

/// The id that the machine got when it was last started, 32 hexadecimal digits: other processes with another
/// one are of another machine, or of before. Empty where it cannot be read. Source: proc_sys_kernel(5).
[[nodiscard]] std::string boot_id(const std::filesystem::path& proc = "/proc");

/// A number that no other pid namespace of this machine has while it lasts: of the caller's, if the proc file
/// system shows the processes of that. 0 if it shows those of another, or nothing can be read. Source:
/// proc_pid_ns(5), proc_pid_status(5) ("NSpid").
[[nodiscard]] std::uint64_t pid_namespace(const std::filesystem::path& proc = "/proc");

/// The start time of the calling process. Right even where the proc file system belongs to another pid
/// namespace than the process, and the process's own number means somebody else there. Once read, it is known
/// where there is no proc file system any more, as after chroot(2). Thread-safe. Errors: io_failed.
[[nodiscard]] Result<std::uint64_t> own_start_time(const std::filesystem::path& proc = "/proc");

/// Whether a filter (seccomp) decides upon the calling thread's system calls: it may end the process for one
/// that it does not expect, so that only those ought to be made that nothing can do without. Also where that
/// cannot be read. Source: proc_pid_status(5).
[[nodiscard]] bool has_call_filter(const std::filesystem::path& proc = "/proc");

} // namespace gpu_sleep
