// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How a process is known, and where its agent's socket is: the rules for names that agents and commands
// share, and the directories in /tmp, which everybody can write to.

#pragma once

#include "base/error.hpp"
#include "base/fd.hpp"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep {

/// The prefix of the names of all agent directories, beneath /tmp.
inline constexpr std::string_view k_agent_directory_prefix = "gpu-sleep-";

/// "/tmp/gpu-sleep-UID": a fixed path, which jobs without a login session find and a logout does not remove.
/// `uid` is that in the process's own user namespace. If somebody else has taken the name, a dot and random
/// digits follow it.
[[nodiscard]] std::string agent_directory(uid_t uid);

/// The user id that stands for every user whom this user namespace does not know. Source: proc(5).
[[nodiscard]] uid_t overflow_uid();

/// Identifies a process, also after its pid is used again.
struct ProcessIdentity {
    pid_t pid = 0;
    std::uint64_t start_time = 0; ///< clock ticks after boot, field 22 of /proc/PID/stat
    friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

/// The name of the agent's control thread: the first while the process has the name from its environment, the
/// second once the program has set a name. So a command knows which it is even if the process is stopped and
/// does not answer. At most 15 characters; all begin with the first.
inline constexpr const char* k_control_thread = "gpu-sleep-ctl";
inline constexpr const char* k_control_thread_renamed = "gpu-sleep-ctl+";
/// Its name once the process has begun to end and has closed its socket.
inline constexpr const char* k_control_thread_ending = "gpu-sleep-ctl-";

/// The name of its operations thread, by how the last sleep or wake has left the process: what a command can
/// still say of one that is stopped. At most 15 characters; all begin with the first.
inline constexpr const char* k_work_thread = "gpu-sleep-work"; ///< awake
inline constexpr const char* k_work_thread_partial = "gpu-sleep-work/";
inline constexpr const char* k_work_thread_asleep = "gpu-sleep-work-";
inline constexpr const char* k_work_thread_paused = "gpu-sleep-work=";
inline constexpr const char* k_work_thread_deep = "gpu-sleep-work_";

/// "PID-STARTTIME.sock", as the process's own namespaces see both.
[[nodiscard]] std::string agent_socket_name(pid_t pid, std::uint64_t start_time);

/// Follows the socket's name in that of the file with what a process has said of itself last: a Report, as a
/// status is answered.
inline constexpr const char* k_state_suffix = ".state";

/// The reverse; nothing for any other name.
[[nodiscard]] std::optional<ProcessIdentity> parse_agent_socket_name(std::string_view name);

/// The id in the name of the connection file that a kernel of Jupyter is started with: of
/// "python3 -m ipykernel_launcher -f /run/user/7/kernel-ID.json". Blanks or zeros part the words.
[[nodiscard]] std::string kernel_in(std::string_view command);

/// The start time of `pid`. `proc` is where the proc file system is mounted. Errors: no_process, io_failed.
/// Source: proc_pid_stat(5).
[[nodiscard]] Result<std::uint64_t> start_time_of(pid_t pid, const std::filesystem::path& proc = "/proc");

/// Some of what the kernel tells of a process. Source: proc_pid_stat(5).
struct ProcessStat {
    char state = '?';
    pid_t parent = 0;
    unsigned flags = 0; ///< PF_... of the kernel
    int threads = 0;    ///< a first thread that has ended counts while others live
};
/// Nothing if it is not known.
[[nodiscard]] std::optional<ProcessStat> stat_of(pid_t pid);

/// The letter for the state of `pid`: 'R' if it wants to run, 'T' or 't' if a signal or a debugger has
/// stopped it; '?' if it is not known. Source: proc_pid_stat(5).
[[nodiscard]] char state_of(pid_t pid);

inline constexpr std::size_t k_boot_id_digits = 32;

/// Whether `text` has the form of a boot_id().
[[nodiscard]] bool is_boot_id(std::string_view text) noexcept;

/// The id of the current boot of the machine, 32 hexadecimal digits: a process with another one runs on
/// another machine, or ran before the last boot. Empty if it cannot be read. Source: proc_sys_kernel(5).
[[nodiscard]] std::string boot_id(const std::filesystem::path& proc = "/proc");

/// A number for the caller's pid namespace, unique on this machine while the namespace exists. 0 if the proc
/// file system belongs to another pid namespace, or cannot be read. Source: proc_pid_ns(5),
/// proc_pid_status(5) ("NSpid").
[[nodiscard]] std::uint64_t pid_namespace(const std::filesystem::path& proc = "/proc");

/// The value of pid_namespace() in the machine's first namespace, of which all others are a part. Source:
/// Linux, PROC_PID_INIT_INO.
inline constexpr std::uint64_t k_first_pid_namespace = 0xEFFFFFFC;

/// The start time of the calling process. Correct even if the proc file system belongs to another pid
/// namespace, in which the process's own pid is another process. After the first call it needs no proc file
/// system, so it works after chroot(2). Thread-safe. Errors: io_failed.
[[nodiscard]] Result<std::uint64_t> own_start_time(const std::filesystem::path& proc = "/proc");

/// Whether a seccomp filter restricts the calling thread's system calls. It may end the process for an
/// unexpected call, so avoid all calls that are not necessary. True also if that cannot be read. False if the
/// only filter says of itself that it lets the agent's calls pass: the guide for containers has such a
/// profile. Source: proc_pid_status(5).
[[nodiscard]] bool has_call_filter(const std::filesystem::path& proc = "/proc");

/// The limit of entries that are read of /tmp, and of each user's directories in it: others may fill them.
inline constexpr std::size_t k_max_entries = 65'536;

/// The agents' directories in a /tmp.
struct AgentDirectories {
    /// The names of the agents' directories, by owner. Only the owner may enter them, and none is a link.
    /// Each list is sorted, so that all processes of a user choose the same first one.
    std::map<uid_t, std::vector<std::string>> names;
    bool is_whole = true; ///< false where there were more than k_max_entries
};

/// Reads the directory `tmp`, and opens nothing in it. Errors: io_failed (it cannot be read).
[[nodiscard]] Result<AgentDirectories> find_agent_directories(int tmp);

/// The names in `directory`, at most `most`. Errors: io_failed (it cannot be read).
[[nodiscard]] Result<std::vector<std::string>> names_in(int directory, std::size_t most);

/// Opens the directory `name` in `tmp`, if only `owner` may enter it and it is not a link. Returns an empty
/// descriptor and sets errno if it cannot be opened; EPERM if it is not private.
[[nodiscard]] UniqueFd open_private_directory(int tmp, const std::string& name, uid_t owner) noexcept;

} // namespace gpu_sleep
