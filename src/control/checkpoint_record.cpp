// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The file: a line that says what it is, a line a GPU, or "lost", and a last one without which it is not
// whole.

#include "control/checkpoint_record.hpp"

#include <sstream>
#include <thread>

namespace gpu_sleep::control {
namespace {

constexpr const char* k_first_line = "gpu-sleep checkpoint 1";
constexpr const char* k_last_line = "end";
constexpr std::string_view k_ending = ".checkpoint";

UniqueFd open_tmp() {
    return open_file(AT_FDCWD, "/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/// Where the agents of `owner` have their sockets.
UniqueFd open_directory(uid_t owner, bool makes_it = false) {
    const auto tmp = open_tmp();
    const auto name = std::filesystem::path(agent_directory(owner)).filename().string();
    const bool is_made = tmp && makes_it && ::mkdirat(tmp.get(), name.c_str(), S_IRWXU) == 0;
    if (is_made && owner != ::geteuid())
        static_cast<void>(
            ::fchownat(tmp.get(), name.c_str(), owner, -1, AT_SYMLINK_NOFOLLOW)); // or it is refused
    return tmp ? open_private_directory(tmp.get(), name, owner) : UniqueFd();
}

Recorded parse_file(int file) {
    std::array<char, 16'384> text{};
    const auto got = ::pread(file, text.data(), text.size(), 0);
    std::istringstream lines(std::string(text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))));
    std::string line;
    if (!std::getline(lines, line) || line != k_first_line) return {};
    Recorded recorded;
    while (std::getline(lines, line) && line != k_last_line) {
        std::istringstream words(line);
        std::string uuid;
        Bytes bytes = 0;
        if (words >> uuid >> bytes)
            recorded.needs[uuid] = bytes;
        else if (line == "lost")
            recorded.is_lost = true;
        else
            return {};
    }
    return line == k_last_line ? recorded : Recorded();
}

/// Returns the file's name for a process as this command's pid namespace numbers it.
std::string name_of(const ProcessIdentity& process) {
    return fmt::format("{}-{}-{}{}", process.pid, process.start_time, pid_namespace(), k_ending);
}

/// Returns the process of a file's name, if it is of this pid namespace.
std::optional<ProcessIdentity> process_of(const std::string& name) {
    std::istringstream words(name);
    ProcessIdentity process;
    char dash = 0;
    words >> process.pid >> dash >> process.start_time;
    return words && name == name_of(process) ? std::optional(process) : std::nullopt;
}

LockedFile find_file(const Process& process) {
    const auto directory = open_directory(process.uid);
    const auto name = name_of({process.pid, process.start_time});
    return directory ? LockedFile::find(directory.get(), name.c_str()) : LockedFile();
}

/// Removes what processes left that ended asleep, those of this pid namespace.
void remove_leftovers(int directory) {
    const auto names = names_in(directory, k_max_entries);
    if (!names || pid_namespace() == 0) return;
    for (const auto& name : *names) {
        const auto process = process_of(name);
        if (!process) continue;
        const auto start = start_time_of(process->pid);
        if (start ? *start != process->start_time : start.error().code == ErrorCode::no_process)
            ::unlinkat(directory, name.c_str(), 0);
    }
}

} // namespace

Result<CheckpointRecord> CheckpointRecord::open(const Process& process, Milliseconds timeout) {
    constexpr Milliseconds k_look_again{20};
    const auto name = name_of({process.pid, process.start_time});
    auto directory = open_directory(process.uid, true);
    if (!directory) return errno_error(ErrorCode::io_failed, errno, "open", name);
    remove_leftovers(directory.get());
    const auto deadline = Clock::now() + timeout;
    for (;;) {
        auto file = GPU_SLEEP_TRY(LockedFile::open(directory.get(), name));
        while (file.lock() != LockedFile::Lock::taken) {
            if (Clock::now() >= deadline)
                return make_error(ErrorCode::timed_out, "another command is working on it");
            std::this_thread::sleep_for(k_look_again);
        }
        const bool is_removed = !file.is_named(directory.get(), name.c_str());
        if (!is_removed) return CheckpointRecord(std::move(directory), std::move(file), name);
    }
}

Recorded CheckpointRecord::read() const {
    return parse_file(file_.get());
}

Result<void> CheckpointRecord::write(const Recorded& recorded) const {
    auto text = fmt::format("{}\n", k_first_line);
    for (const auto& [uuid, bytes] : recorded.needs) text += fmt::format("{} {}\n", uuid, bytes);
    text += fmt::format("{}{}\n", recorded.is_lost ? "lost\n" : "", k_last_line);
    // Over what was there, which needs no room on a disk; what is left of that stands behind the last line.
    const auto written = ::pwrite(file_.get(), text.data(), text.size(), 0);
    if (written < 0) return errno_error(ErrorCode::io_failed, errno, "write", name_);
    const bool is_whole = written == static_cast<ssize_t>(text.size());
    // A part before what is left says what nobody wrote: then rather nothing.
    static_cast<void>(::ftruncate(file_.get(), is_whole ? written : 0));
    return is_whole ? Result<void>() : errno_error(ErrorCode::io_failed, ENOSPC, "write", name_);
}

Recorded recorded_of(const Process& process) {
    const auto file = find_file(process);
    return file ? parse_file(file.get()) : Recorded();
}

bool has_record(const Process& process) {
    return static_cast<bool>(find_file(process));
}

std::set<pid_t> recorded_processes() {
    std::set<pid_t> pids;
    const auto own = ::geteuid();
    const auto tmp = open_tmp();
    const auto found = find_agent_directories(tmp.get());
    if (!found) return pids;
    for (const auto& [owner, directories] : found->names) {
        if (own != 0 && own != owner) continue;
        const auto names = names_in(open_directory(owner).get(), k_max_entries);
        if (!names) continue;
        for (const auto& name : *names)
            if (const auto process = process_of(name)) pids.insert(process->pid);
    }
    return pids;
}

} // namespace gpu_sleep::control
