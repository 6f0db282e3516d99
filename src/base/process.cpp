// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Names of sockets, what they are made of, and the directories with them.

#include "base/process.hpp"

#include "base/files.hpp"
#include "base/text.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <memory>
#include <sstream>

namespace gpu_sleep {
namespace {

bool is_shortage(int number) noexcept {
    return number == EMFILE || number == ENFILE || number == ENOMEM;
}

Error cannot_read(const std::filesystem::path& file) {
    return errno_error(ErrorCode::io_failed, errno, "open", "cannot read " + file.string());
}

Result<std::uint64_t> start_time_in(const std::string& stat, std::string_view process) {
    // The command's name, field 2, is in brackets and may hold spaces, brackets and newlines: count on from
    // the last bracket of the file.
    constexpr int k_fields_between = 19;
    const auto bracket = stat.rfind(')');
    std::istringstream rest(bracket == std::string::npos ? std::string() : stat.substr(bracket + 1));
    std::string field;
    for (int i = 0; i < k_fields_between; ++i) rest >> field;
    std::uint64_t start_time = 0;
    if (!(rest >> start_time))
        return make_error(ErrorCode::io_failed, "cannot read the start time of process {}", process);
    return start_time;
}

} // namespace

uid_t overflow_uid() {
    constexpr uid_t k_default = 65534;
    const auto text = read_small_file("/proc/sys/kernel/overflowuid").value_or("");
    uid_t uid = k_default;
    std::from_chars(text.data(), text.data() + text.size(), uid); // leaves it alone where there is no number
    return uid;
}

std::string agent_directory(uid_t uid) {
    return fmt::format("/tmp/{}{}", k_agent_directory_prefix, uid);
}

std::string agent_socket_name(pid_t pid, std::uint64_t start_time) {
    return fmt::format("{}-{}.sock", pid, start_time);
}

std::optional<ProcessIdentity> parse_agent_socket_name(std::string_view name) {
    constexpr std::string_view k_suffix = ".sock";
    const auto dash = name.find('-');
    if (dash == std::string_view::npos || !name.ends_with(k_suffix)) return std::nullopt;
    const auto pid = parse_number<pid_t>(name.substr(0, dash));
    const auto start_time =
        parse_number<std::uint64_t>(name.substr(dash + 1, name.size() - dash - 1 - k_suffix.size()));
    if (!pid || *pid <= 0 || !start_time) return std::nullopt;
    return ProcessIdentity{*pid, *start_time};
}

std::string kernel_in(std::string_view command) {
    constexpr std::string_view k_begin = "/kernel-";
    const auto begin = command.rfind(k_begin);
    if (begin == command.npos) return {};
    const auto id = command.substr(begin + k_begin.size());
    const auto end = id.find(".json");
    return end == id.npos || id.substr(0, end).find_first_of(std::string_view("/ \0", 3)) != id.npos
               ? std::string()
               : std::string(id.substr(0, end));
}

Result<std::uint64_t> start_time_of(pid_t pid, const std::filesystem::path& proc) {
    const auto stat = read_small_file(proc / std::to_string(pid) / "stat");
    if (!stat && is_shortage(errno)) return cannot_read(proc / std::to_string(pid) / "stat");
    if (!stat) return make_error(ErrorCode::no_process, "there is no process {}", pid);
    return start_time_in(*stat, std::to_string(pid));
}

std::optional<ProcessStat> stat_of(pid_t pid) {
    constexpr const char* k_format = ") %c %d %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d";
    const auto text = read_small_file(fmt::format("/proc/{}/stat", pid)).value_or("");
    const auto name_end = text.rfind(") "); // as above
    ProcessStat stat;
    const bool is_read =
        name_end != std::string::npos && std::sscanf(text.c_str() + name_end, k_format, &stat.state,
                                                     &stat.parent, &stat.flags, &stat.threads) == 4;
    return is_read ? std::optional(stat) : std::nullopt;
}

char state_of(pid_t pid) {
    return stat_of(pid).value_or(ProcessStat()).state;
}

bool is_boot_id(std::string_view text) noexcept {
    const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
    return text.size() == k_boot_id_digits && std::all_of(text.begin(), text.end(), is_digit);
}

std::string boot_id(const std::filesystem::path& proc) {
    auto id = read_small_file(proc / "sys" / "kernel" / "random" / "boot_id").value_or("");
    std::erase_if(id, [](char c) { return c == '-' || c == '\n'; });
    return is_boot_id(id) ? id : std::string();
}

std::uint64_t pid_namespace(const std::filesystem::path& proc) {
    constexpr std::string_view k_numbers = "NSpid:"; // in the namespace that proc shows, and in those within
    const auto status = read_small_file(proc / "self" / "status").value_or("");
    std::string_view rest = status;
    while (const auto line = take_line(rest)) {
        if (!line->starts_with(k_numbers)) continue;
        std::istringstream numbers(std::string(line->substr(k_numbers.size())));
        pid_t number = 0;
        if (!(numbers >> number) || numbers >> number) return 0;
        struct stat its = {};
        return ::stat((proc / "self" / "ns" / "pid").c_str(), &its) == 0 ? its.st_ino : 0;
    }
    return 0;
}

Result<std::uint64_t> own_start_time(const std::filesystem::path& proc) {
    static std::atomic<std::uint64_t> s_known{0}; // written before s_pid
    static std::atomic<pid_t> s_pid{0};
    const auto stat = read_small_file(proc / "self" / "stat");
    if (!stat && errno == ENOENT && s_pid.load() == ::getpid()) return s_known.load();
    if (!stat) return cannot_read(proc / "self" / "stat");
    auto start_time = start_time_in(*stat, "self");
    if (start_time) {
        s_known = *start_time;
        s_pid = ::getpid();
    }
    return start_time;
}

namespace {

/// Whether the filter answers as cli/containers/seccomp.jq makes it answer. No file has this number, and the
/// kernel says EBADF. It is a call that the agent makes in any case.
bool is_made_for_agent() noexcept {
    constexpr long k_question = 0x67707573;
    return ::syscall(SYS_close, k_question) != 0 && errno == ENOTUNIQ;
}

} // namespace

bool has_call_filter(const std::filesystem::path& proc) {
    const auto status = read_small_file(proc / "thread-self" / "status");
    std::string_view rest = status ? std::string_view(*status) : std::string_view();
    bool is_filtered = !status; // a kernel without filters has no such line
    bool is_only_one = false;   // the program has added none of its own
    while (const auto line = take_line(rest)) {
        if (line->starts_with("Seccomp:")) is_filtered = !line->ends_with("\t0");
        if (line->starts_with("Seccomp_filters:")) is_only_one = line->ends_with("\t1");
    }
    return is_filtered && !(is_only_one && is_made_for_agent());
}

namespace {

constexpr int k_open_flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

bool is_private(const struct stat& status) noexcept {
    return S_ISDIR(status.st_mode) && (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

} // namespace

Result<std::vector<std::string>> names_in(int directory, std::size_t most) {
    UniqueFd copy(open_file(directory, ".", k_open_flags));
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(copy ? ::fdopendir(copy.get()) : nullptr, &::closedir);
    if (!entries)
        return errno_error(ErrorCode::io_failed, errno, copy ? "fdopendir" : "openat",
                           "cannot read a directory");
    static_cast<void>(copy.release()); // the stream owns it now
    std::vector<std::string> names;
    for (const dirent* entry = nullptr; names.size() < most && (entry = ::readdir(entries.get())) != nullptr;)
        names.emplace_back(entry->d_name);
    return names;
}

Result<AgentDirectories> find_agent_directories(int tmp) {
    auto entries = GPU_SLEEP_TRY(names_in(tmp, k_max_entries));
    AgentDirectories found;
    found.is_whole = entries.size() < k_max_entries;
    for (auto& name : entries) {
        struct stat status = {};
        if (name.starts_with(k_agent_directory_prefix) &&
            ::fstatat(tmp, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && is_private(status))
            found.names[status.st_uid].push_back(std::move(name));
    }
    for (auto& [owner, names] : found.names) std::sort(names.begin(), names.end());
    return found;
}

UniqueFd open_private_directory(int tmp, const std::string& name, uid_t owner) noexcept {
    UniqueFd directory(open_file(tmp, name.c_str(), k_open_flags));
    struct stat status = {};
    if (!directory || ::fstat(directory.get(), &status) != 0) return UniqueFd();
    if (status.st_uid == owner && is_private(status)) return directory;
    directory.reset();
    errno = EPERM;
    return directory;
}

} // namespace gpu_sleep
