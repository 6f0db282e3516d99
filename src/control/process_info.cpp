// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading /proc/PID.

#include "control/process_info.hpp"

#include "base/files.hpp"
#include "base/text.hpp"
#include "model/terms.hpp"

#include <pwd.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

namespace gpu_sleep::control {
namespace {

/// Fills in what /proc/PID/status says, and the process whose thread it is. Returns false unless all that is
/// needed was there.
bool read_status(std::string_view rest, Process& process, pid_t& leader) {
    bool has_uid = false;
    leader = process.pid;
    while (const auto line = take_line(rest)) {
        const auto key = line->substr(0, line->find('\t'));
        const auto value = line->substr(std::min(key.size() + 1, line->size()));
        const auto values = [&] { return std::istringstream(std::string(value)); };
        if (key == "Name:") process.command = fmt::format("[{}]", value);
        if (key == "Tgid:") values() >> leader;
        if (key == "PPid:") values() >> process.parent;
        if (key == "Uid:") {
            uid_t real = 0;
            has_uid = static_cast<bool>(values() >> real >> process.uid);
        }
        if (key != "NSpid:") continue;
        auto numbers = values(); // one for each namespace, the innermost last
        for (pid_t number = 0; numbers >> number;) process.inner_pid = number;
    }
    return has_uid && process.inner_pid > 0;
}

/// Whether a stat file is that of a thread of the kernel's own. Source: proc_pid_stat(5), field 9
/// (PF_KTHREAD).
bool is_of_kernel(std::string_view stat) {
    constexpr unsigned long k_kernel_thread = 0x0020'0000;
    stat.remove_prefix(std::min(stat.rfind(')') + 1, stat.size())); // npos + 1 is 0
    std::istringstream fields{std::string(stat)};
    std::string skipped;
    for (int field = 3; field < 9; ++field) fields >> skipped;
    unsigned long flags = 0;
    return fields >> flags && (flags & k_kernel_thread) != 0;
}

/// Empty where it cannot be read, as when the process ends meanwhile.
std::string read_file(const std::filesystem::path& path) {
    return read_small_file(path).value_or("");
}

/// The letter of the state in a status file, or 0.
char state_in(std::string_view status) noexcept {
    constexpr std::string_view k_key = "\nState:\t";
    const auto at = status.find(k_key);
    return at == std::string_view::npos ? '\0' : status.substr(at + k_key.size(), 1).front();
}

/// Sets what the command line says.
void read_command(const std::filesystem::path& directory, Process& process) {
    auto text = read_file(directory / "cmdline");
    while (!text.empty() && text.back() == '\0') text.pop_back();
    if (text.empty()) return;
    std::vector<std::string> arguments;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, '\0');) arguments.push_back(std::move(word));
    process.program = program_name(arguments);
    std::replace(text.begin(), text.end(), '\0', ' ');
    process.command = std::move(text);
}

} // namespace

Result<Process> ProcFs::read(pid_t pid) const {
    const auto status = read_small_file(directory(pid) / "status");
    if (!status && lacks_descriptors(errno)) return lack_of_descriptors(errno);
    if (!status) return make_error(ErrorCode::no_process, "there is no process {}", pid);
    Process process;
    process.pid = pid;
    pid_t leader = 0;
    const bool is_whole = read_status(*status, process, leader);
    if (!is_whole) return make_error(ErrorCode::io_failed, "cannot read the status of process {}", pid);
    if (leader != pid)
        return make_error(ErrorCode::no_process, "there is no process {}: it is a thread of process {}", pid,
                          leader);
    process.start_time = GPU_SLEEP_TRY(start_time_of(pid, root_));
    read_command(directory(pid), process);
    return process;
}

Result<std::vector<Process>> ProcFs::list() const {
    std::vector<Process> processes;
    std::error_code failure;
    std::filesystem::directory_iterator entry(root_, failure);
    if (failure && lacks_descriptors(failure.value())) return lack_of_descriptors(failure.value());
    if (failure) return errno_error(ErrorCode::io_failed, failure.value(), "opendir", root_.string());
    for (const std::filesystem::directory_iterator end; entry != end; entry.increment(failure)) {
        const auto pid = parse_number<pid_t>(entry->path().filename().native());
        if (!pid || is_of_kernel(read_file(directory(*pid) / "stat"))) continue;
        auto process = read(*pid);
        if (process)
            processes.push_back(*std::move(process));
        else if (lacks_descriptors(process.error().driver_status))
            return std::move(process).error();
    }
    std::ranges::sort(processes, {}, &Process::pid);
    return processes;
}

std::vector<std::filesystem::path> ProcFs::threads(pid_t pid) const {
    std::vector<std::filesystem::path> found;
    std::error_code failure;
    for (std::filesystem::directory_iterator entry(directory(pid) / "task", failure), end; entry != end;
         entry.increment(failure))
        found.push_back(entry->path());
    return found;
}

bool ProcFs::is_running(const Process& process) const {
    const auto start_time = start_time_of(process.pid, root_);
    if (!start_time || *start_time != process.start_time) return false;
    const auto has_memory = [](const std::filesystem::path& thread) {
        std::error_code failure;
        static_cast<void>(std::filesystem::read_symlink(thread / "exe", failure));
        return failure != std::errc::no_such_file_or_directory; // others' may not be read
    };
    const auto all = threads(process.pid);
    return std::ranges::any_of(all, has_memory);
}

bool ProcFs::is_stopped(const Process& process) const {
    if (!frozen_group(process).empty()) return true;
    bool has_stopped = false;
    for (const auto& thread : threads(process.pid)) {
        const auto state = state_in(read_file(thread / "status"));
        if (state == 'Z' || state == 'X') continue; // it has ended, as the first may before the others
        if (state != 'T' && state != 't') return false;
        has_stopped = true;
    }
    return has_stopped;
}

std::string ProcFs::how_to_go_on(const Process& process) const {
    const auto group = frozen_group(process);
    const auto* const thawed = group.filename() == "freezer.state" ? "THAWED" : "0";
    const auto way = group.empty() ? fmt::format("kill -CONT {}, or detach its debugger", process.pid)
                                   : fmt::format("write {} to {}", thawed, printable(group.string()));
    const auto& job = process.origin.job; // its own word
    return model::is_number(job) ? fmt::format("scontrol resume {}, if Slurm suspended it; else {}", job, way)
                                 : way;
}

std::filesystem::path ProcFs::frozen_group(const Process& process) const {
    const auto groups = control_groups(process.pid);
    std::string_view rest = groups;
    while (const auto line = take_line(rest)) { // "0::/PATH", and of the old kind "5:freezer:/PATH"
        const auto controllers = line->find(':');
        const auto path = controllers == line->npos ? line->npos : line->find(":/", controllers);
        if (path == line->npos) continue;
        const auto kind = line->substr(controllers + 1, path - controllers - 1);
        const auto* const file = kind.empty() ? "cgroup.events" : "freezer.state";
        auto group = root_.parent_path() / "sys/fs/cgroup" / kind;
        for (const auto& name : std::filesystem::path(line->substr(path + 2))) {
            group /= name;
            const auto state = read_file(group / file);
            if (state.starts_with("FROZEN") || state.find("frozen 1") != std::string::npos)
                return group / (kind.empty() ? "cgroup.freeze" : file);
        }
    }
    return {};
}

std::optional<std::pair<std::filesystem::path, std::string>>
ProcFs::find_thread(pid_t pid, std::string_view prefix) const {
    for (auto& thread : threads(pid)) {
        auto name = read_file(thread / "comm");
        if (!name.starts_with(prefix)) continue;
        while (name.ends_with('\n')) name.pop_back();
        return std::pair(std::move(thread), std::move(name));
    }
    return std::nullopt;
}

bool ProcFs::has_mapped(pid_t pid, std::string_view text) const {
    std::ifstream maps(directory(pid) / "maps");
    for (std::string line; std::getline(maps, line);)
        if (line.find(text, line.rfind('/') + 1) != std::string::npos) return true;
    return false;
}

bool ProcFs::lacks(pid_t pid, std::string_view text) const {
    std::ifstream maps(directory(pid) / "maps");
    return maps.peek() != std::ifstream::traits_type::eof() && !has_mapped(pid, text);
}

std::optional<std::string> ProcFs::variable(pid_t pid, std::string_view variable) const {
    const auto text = read_file(directory(pid) / "environ");
    std::string_view rest = text;
    while (!rest.empty()) {
        const auto entry = rest.substr(0, rest.find('\0'));
        if (entry.starts_with(variable) && entry.substr(variable.size()).starts_with('='))
            return std::string(entry.substr(variable.size() + 1));
        rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
    }
    return std::nullopt;
}

std::string ProcFs::control_groups(pid_t pid) const {
    return read_file(directory(pid) / "cgroup");
}

bool ProcFs::shares_time_namespace(pid_t pid) const {
    std::error_code own_failure;
    std::error_code failure;
    const auto own = std::filesystem::read_symlink(root_ / "self" / "ns" / "time", own_failure);
    const auto other = std::filesystem::read_symlink(directory(pid) / "ns" / "time", failure);
    // A kernel without time namespaces has no such links.
    return failure == std::errc::no_such_file_or_directory || (!own_failure && !failure && own == other);
}

bool ProcFs::is_of_own_namespace() const {
    std::error_code failure;
    const auto self = std::filesystem::read_symlink(root_ / "self", failure);
    return failure || self == std::to_string(::getpid());
}

bool lacks_descriptors(int error_number) noexcept {
    return error_number == EMFILE || error_number == ENFILE;
}

Error lack_of_descriptors(int error_number) {
    return errno_error(ErrorCode::io_failed, error_number, "open",
                       "cannot list processes: raise the limit on open files (ulimit -n)");
}

void raise_descriptor_limit() noexcept {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

ProgramName program_of(const Process& process) {
    auto name = process.program;
    const std::string_view command = process.command;
    if (name.program.empty() && command.starts_with('[') && command.ends_with(']'))
        name.program = command.substr(1, command.size() - 2);
    name.program = name.program.substr(0, name.program.find(' '));
    return name;
}

std::string display_name(const Process& process) {
    if (!process.name.empty()) return process.name;
    return process.program.program.empty() ? process.command : to_string(process.program);
}

std::string title(const Process& process) {
    constexpr std::size_t k_columns = 40;
    if (display_name(process).empty()) return std::to_string(process.pid);
    return fmt::format("{} ({})", process.pid, shortened(display_name(process), k_columns));
}

std::vector<Process> descendants_of(pid_t ancestor, const std::vector<Process>& processes) {
    std::set<pid_t> family{ancestor};
    for (std::size_t before = 0; before != family.size();) {
        before = family.size();
        for (const auto& process : processes)
            if (family.contains(process.parent)) family.insert(process.pid);
    }
    std::vector<Process> found;
    for (const auto& process : processes)
        if (process.pid != ancestor && family.contains(process.pid)) found.push_back(process);
    return found;
}

std::string user_name(uid_t uid) {
    std::array<char, 4096> buffer;
    passwd entry{};
    passwd* found = nullptr;
    if (::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found) return found->pw_name;
    return std::to_string(uid);
}

Result<uid_t> parse_user(const std::string& text) {
    std::array<char, 4096> buffer;
    passwd entry{};
    passwd* found = nullptr;
    if (::getpwnam_r(text.c_str(), &entry, buffer.data(), buffer.size(), &found) == 0 && found)
        return found->pw_uid;
    if (const auto uid = parse_number<uid_t>(text)) return *uid;
    return make_error(ErrorCode::invalid_argument, "there is no user '{}'", text);
}

} // namespace gpu_sleep::control
