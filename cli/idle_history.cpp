// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The file: a line that says what it is, a line a process, and a last one without which it is not whole.

#include "cli/idle_history.hpp"

#include "base/agent_directory.hpp"
#include "base/small_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

namespace gpu_sleep::cli {
namespace {

constexpr const char* k_sightings_first_line = "gpu-sleep sightings 1";
constexpr const char* k_sightings_last_line = "end";
/// A process that polls and sends nothing to the GPU uses less of a processor.
constexpr double k_busy_share = 0.02;

Error failed(std::string_view call) {
    return errno_error(ErrorCode::io_failed, errno, call, agent_directory(::geteuid()) + "/sightings");
}

/// Locks `file`, which another pass may hold. Errors: timed_out.
Result<void> lock(int file, Milliseconds timeout) {
    constexpr Milliseconds k_look_again{20};
    const auto deadline = Clock::now() + timeout;
    while (::flock(file, LOCK_EX | LOCK_NB) != 0) {
        if (Clock::now() >= deadline) return make_error(ErrorCode::timed_out, "another pass is at work");
        std::this_thread::sleep_for(k_look_again);
    }
    return {};
}

} // namespace

Sighting after(const std::optional<Sighting>& before, const ProcessIdentity& process,
               const Glance& glance) noexcept {
    Sighting now{process, glance.at - glance.window, glance.at, glance.cpu};
    if (glance.last_seen) {
        now.idle_since = glance.at - *glance.last_seen;
        return now;
    }
    if (!before || before->process != process) return now;
    const double gap = glance.at - before->at;
    const bool may_have_worked = gap > glance.window && glance.cpu - before->cpu > k_busy_share * gap;
    if (!may_have_worked) now.idle_since = std::min(now.idle_since, before->idle_since);
    return now;
}

std::string to_text(const std::vector<Sighting>& sightings) {
    auto text = fmt::format("{}\n", k_sightings_first_line);
    for (const auto& [process, since, at, cpu] : sightings)
        text += fmt::format("{} {} {:.3f} {:.3f} {:.3f}\n", process.pid, process.start_time, since, at, cpu);
    return text + k_sightings_last_line + '\n';
}

std::vector<Sighting> parse_sightings(std::string_view text) {
    std::istringstream lines{std::string(text)};
    std::string line;
    std::vector<Sighting> sightings;
    if (!std::getline(lines, line) || line != k_sightings_first_line) return {};
    while (std::getline(lines, line) && line != k_sightings_last_line) {
        std::istringstream words(line);
        Sighting each;
        if (!(words >> each.process.pid >> each.process.start_time >> each.idle_since >> each.at >> each.cpu))
            return {};
        sightings.push_back(each);
    }
    return line == k_sightings_last_line ? sightings : std::vector<Sighting>();
}

Result<IdleHistory> IdleHistory::open(Milliseconds timeout) {
    const UniqueFd tmp(::open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!tmp) return failed("open");
    const auto name = std::filesystem::path(agent_directory(::geteuid())).filename().string();
    ::mkdirat(tmp.get(), name.c_str(), S_IRWXU);
    const auto directory = open_private_directory(tmp.get(), name, ::geteuid());
    if (!directory) return failed("open");
    const auto file_name = fmt::format("{}.sightings", pid_namespace());
    UniqueFd file(::openat(directory.get(), file_name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
                           S_IRUSR | S_IWUSR));
    if (!file) return failed("open");
    GPU_SLEEP_TRY(lock(file.get(), timeout));
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) return failed("fstat");
    constexpr off_t k_most = 1 << 20; // of 10,000 processes
    std::string text(static_cast<std::size_t>(std::min(status.st_size, k_most)), '\0');
    const auto got = ::pread(file.get(), text.data(), text.size(), 0);
    if (got < 0) return failed("read");
    text.resize(static_cast<std::size_t>(got));
    IdleHistory history(std::move(file));
    history.before_ = parse_sightings(text);
    return history;
}

double IdleHistory::note(const ProcessIdentity& process, const Glance& glance) {
    const auto found = std::find_if(before_.begin(), before_.end(),
                                    [&](const Sighting& each) { return each.process == process; });
    now_.push_back(after(found == before_.end() ? std::nullopt : std::optional(*found), process, glance));
    return glance.at - now_.back().idle_since;
}

Result<void> IdleHistory::save() const {
    const auto text = to_text(now_);
    if (::ftruncate(file_.get(), 0) != 0) return failed("ftruncate");
    if (::pwrite(file_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
        return failed("write");
    return {};
}

Result<double> processor_time_of(pid_t pid, const std::filesystem::path& proc) {
    const auto line = read_small_file(proc / std::to_string(pid) / "stat");
    // The name, in brackets, may contain anything.
    const auto end_of_name = line ? line->rfind(')') : std::string::npos;
    if (end_of_name == std::string::npos)
        return make_error(ErrorCode::no_process, "there is no process {}", pid);
    std::istringstream fields(line->substr(end_of_name + 1));
    constexpr std::ptrdiff_t k_before = 11; // fields 3 to 13
    std::istream_iterator<std::string> field(fields);
    std::advance(field, k_before);
    double ticks = 0;
    for (int i = 0; i < 2 && field != std::istream_iterator<std::string>(); ++i, ++field)
        ticks += std::strtod(field->c_str(), nullptr); // utime, stime
    return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

} // namespace gpu_sleep::cli
