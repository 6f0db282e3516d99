// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Processes as the proc file system shows them: identity, parents, title, user, limits. Nothing here knows of
// agents.

#pragma once

#include "base/process.hpp"
#include "control/program_name.hpp"

namespace gpu_sleep::control {

struct Process {
    pid_t pid = 0;                ///< as this command's pid namespace sees it
    pid_t inner_pid = 0;          ///< as the process's own, innermost pid namespace sees it
    pid_t parent = 0;             ///< 0 when the parent lies outside this command's namespace
    uid_t uid = 0;                ///< effective, as this command's user namespace sees it
    std::uint64_t start_time = 0; ///< clock ticks after boot
    std::string command;          ///< its arguments, joined by spaces; "[name]" when it shows none
    ProgramName program;          ///< of its arguments; empty when it shows none
    std::string name;             ///< that gpu-run or itself has given it, once that is known; else empty
    Origin origin;                ///< once that is known, of a process that may be asked
};

/// Reads processes from a mounted proc file system. Stateless; thread-safe.
class ProcFs {
public:
    /// `root` is where the proc file system is mounted; tests name a tree of their own.
    explicit ProcFs(std::filesystem::path root = "/proc") : root_(std::move(root)) {}

    /// Errors: no_process (also for a thread's id, which no listing has), io_failed. Source:
    /// proc_pid_status(5), proc_pid_cmdline(5).
    [[nodiscard]] Result<Process> read(pid_t pid) const;

    /// Every process that can be read, ordered by pid, without the kernel's own threads and those that end
    /// meanwhile. Errors: io_failed (nothing can be read, for want of descriptors or of a proc file system).
    [[nodiscard]] Result<std::vector<Process>> list() const;

    /// The directory of one process.
    [[nodiscard]] std::filesystem::path directory(pid_t pid) const { return root_ / std::to_string(pid); }

    /// The directories of the process's threads, the first one's among them. A process whose first thread has
    /// ended lives on in the others, and its own directory then has no `root` and no `exe`.
    [[nodiscard]] std::vector<std::filesystem::path> threads(pid_t pid) const;

    /// Whether `process` is still there and has not begun to end. A process that ends loses its memory, and
    /// `exe` with it, before it closes its connections, and stays a zombie afterwards. Source:
    /// proc_pid_exe(5).
    [[nodiscard]] bool is_running(const Process& process) const;

    /// Whether all of the process has been stopped, by a signal, a debugger or its control group. Sources:
    /// proc_pid_status(5); the kernel's cgroup-v2, "cgroup.events", and freezer-subsystem.
    [[nodiscard]] bool is_stopped(const Process& process) const;
    /// How a person can resume a stopped process, by what stopped it as far as that is seen.
    [[nodiscard]] std::string how_to_go_on(const Process& process) const;

    /// The directory of the first thread whose name begins with `prefix`, and that name; nothing if there is
    /// none. Source: proc_pid_comm(5).
    [[nodiscard]] std::optional<std::pair<std::filesystem::path, std::string>>
    find_thread(pid_t pid, std::string_view prefix) const;

    /// Whether a file with `text` in its name is mapped into the process; false also where that may not be
    /// read. Source: proc_pid_maps(5).
    [[nodiscard]] bool has_mapped(pid_t pid, std::string_view text) const;
    /// Whether that may be read, and has no such file.
    [[nodiscard]] bool lacks(pid_t pid, std::string_view text) const;

    /// Returns the value of `variable` in the process's environment at its start. Empty if it is not set or
    /// cannot be read. Source: proc_pid_environ(5).
    [[nodiscard]] std::optional<std::string> variable(pid_t pid, std::string_view variable) const;

    /// The control groups of the process, as their file has them. Source: proc_pid_cgroup(5).
    [[nodiscard]] std::string control_groups(pid_t pid) const;

    /// Whether the process counts its clock from the same boot as this command, so that start times can be
    /// compared. Source: time_namespaces(7).
    [[nodiscard]] bool shares_time_namespace(pid_t pid) const;

    /// Whether it has this command under the command's own pid. Otherwise the command is in a pid namespace
    /// below. Source: pid_namespaces(7), "/proc and PID namespaces".
    [[nodiscard]] bool is_of_own_namespace() const;

private:
    /// The file that thaws the frozen control group of the process, or the first frozen one above it; empty
    /// if none is frozen.
    [[nodiscard]] std::filesystem::path frozen_group(const Process& process) const;

    std::filesystem::path root_;
};

/// Whether `error_number` means that this command, or the machine, has no descriptor left.
[[nodiscard]] bool lacks_descriptors(int error_number) noexcept;
[[nodiscard]] Error lack_of_descriptors(int error_number);

/// Raises the limit of open files as far as allowed: a command has a connection to each process.
void raise_descriptor_limit() noexcept;

/// Returns the name of its program; the kernel's name if it shows no arguments. Of a title that it has set,
/// only the first word: the rest may be secret, and changes.
[[nodiscard]] ProgramName program_of(const Process& process);

/// The name that it was given, or else that of its program: "python3 serve.py".
[[nodiscard]] std::string display_name(const Process& process);

/// "4242 (python3 serve.py)", not too long and safe for a terminal; "4242" of one of which nothing else is
/// known.
[[nodiscard]] std::string title(const Process& process);

/// Returns the descendants of `ancestor` among `processes`, in the same order.
[[nodiscard]] std::vector<Process> descendants_of(pid_t ancestor, const std::vector<Process>& processes);

/// The name of a user, or the number where the system knows none. Thread-safe; may ask the network.
[[nodiscard]] std::string user_name(uid_t uid);

/// The user of that name, or of that number if it is not a name. Thread-safe; may ask the network. Errors:
/// invalid_argument.
[[nodiscard]] Result<uid_t> parse_user(const std::string& text);

} // namespace gpu_sleep::control
