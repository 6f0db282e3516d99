// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Log lines, the last steps, and datagrams to the journal.

#include "base/log.hpp"

#include "base/fd.hpp"
#include "base/guard.hpp"
#include "base/process.hpp"
#include "base/sockets.hpp"
#include "base/text.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <new>

namespace gpu_sleep::log {
namespace {

Severity threshold_from_environment() noexcept {
    const char* value = std::getenv("GPU_SLEEP_LOG");
    return parse_severity(value ? value : "").value_or(Severity::warning);
}

const char* g_name = "gpu-sleep";

/// The file that was standard error when this library was loaded: mostly at the program's start.
const auto g_at_start = FileIdentity::of(STDERR_FILENO);

/// Whether somebody is to read what is written to descriptor 2. A program that has closed its standard error
/// may have a connection or a database there.
bool is_for_lines() noexcept {
    struct stat status = {};
    if (::fstat(STDERR_FILENO, &status) != 0) return false;
    if (FileIdentity{status.st_dev, status.st_ino} == g_at_start || S_ISFIFO(status.st_mode)) return true;
    if (S_ISREG(status.st_mode)) return (::fcntl(STDERR_FILENO, F_GETFL) & O_ACCMODE) == O_WRONLY;
    return ::isatty(STDERR_FILENO) == 1;
}

/// Whether a line can be written at once: a pipe may be full, its reader gone. We are a guest on the
/// program's threads, and may be called with locks held.
bool can_write() noexcept {
    pollfd error{STDERR_FILENO, POLLOUT, 0};
    return ::poll(&error, 1, 0) == 1 && error.revents == POLLOUT;
}

std::int64_t wall_milliseconds() noexcept {
    const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<Milliseconds>(since_epoch).count();
}

/// Writes "07:46:50.123 " to `to`, in UTC: a time zone would take a lock of the C library. Returns its end.
template <class Out>
Out print_time(Out to, std::int64_t wall) {
    constexpr std::int64_t k_day = 86'400'000;
    const auto time = wall % k_day;
    return fmt::format_to(to, "{:02}:{:02}:{:02}.{:03} ", time / 3'600'000, time / 60'000 % 60,
                          time / 1'000 % 60, time % 1'000);
}

/// A step that was begun. A thread that reads it while another overwrites it may see some of both.
struct Noted {
    std::atomic<const char*> name;
    std::atomic<std::uint64_t> number; ///< of all steps, from 1; 0: none yet
    std::atomic<std::int64_t> begun;   ///< wall_milliseconds()
    std::atomic<double> seconds;       ///< that it took; below 0: it is under way
};
std::array<Noted, 48> g_noted; // a sleep has about twenty
std::atomic<std::uint64_t> g_steps;

Noted& noted(std::uint64_t number) noexcept {
    return g_noted[number % g_noted.size()];
}

} // namespace

std::optional<Severity> parse_severity(std::string_view word) noexcept {
    if (word == "error") return Severity::error;
    if (word == "warning") return Severity::warning;
    if (word == "info") return Severity::info;
    if (word == "debug") return Severity::debug;
    return std::nullopt;
}

bool enabled(Severity severity) noexcept {
    static const Severity threshold = threshold_from_environment();
    return severity <= threshold;
}

void name_lines(const char* name) noexcept {
    g_name = name;
}

void write(Severity, std::string_view message) noexcept {
    const CancellationHold no_cancellation;
    const int errno_before = errno;
    // A pipe takes so much in one piece or not at all. Source: pipe(7).
    std::array<char, PIPE_BUF> line{};
    auto* end = fmt::format_to_n(line.data(), line.size() - 1, "{}[{}]: ", g_name, ::getpid()).out;
    if (enabled(Severity::debug)) end = print_time(end, wall_milliseconds());
    end += print_into({end, line.data() + line.size() - 1},
                      message); // it may quote the environment, or the program
    *end = '\n';
    const auto size = static_cast<std::size_t>(end + 1 - line.data());
    if (is_for_lines() && can_write()) {
        const PipeSignalHold signal;
        // One write: a short or failed one has nobody left to be told.
        if (::write(STDERR_FILENO, line.data(), size) < 0 && errno == EPIPE) signal.take_back();
    }
    errno = errno_before;
}

void write_formatted(Severity severity, fmt::string_view text, fmt::format_args args) noexcept {
    try {
        fmt::basic_memory_buffer<char, 512> message;
        fmt::vformat_to(std::back_inserter(message), text, args);
        write(severity, {message.data(), message.size()});
    } catch (const std::bad_alloc&) {
        std::array<char, 512> beginning;
        const auto* const end = fmt::vformat_to_n(beginning.data(), beginning.size(), text, args).out;
        write(severity, {beginning.data(), static_cast<std::size_t>(end - beginning.data())});
    }
}

Step::Step(const char* name) noexcept : name_(name), number_(++g_steps) {
    auto& its = noted(number_);
    its.name = name;
    its.begun = wall_milliseconds();
    its.seconds = -1;
    its.number = number_;
    debug("{} begins", name);
}

Step::~Step() {
    const auto seconds = seconds_since(begun_);
    if (auto& its = noted(number_); its.number == number_) its.seconds = seconds;
    if (enabled(Severity::debug)) ignoring_errors([&] { debug("{}: {}", name_, format_seconds(seconds)); });
}

std::vector<std::string> recent_steps() {
    std::vector<std::string> lines;
    const std::uint64_t last = g_steps;
    for (auto number = last - std::min<std::uint64_t>(last, g_noted.size()) + 1; number <= last; ++number) {
        const auto& its = noted(number);
        if (its.number != number) continue;
        const std::int64_t begun = its.begun;
        const double seconds = its.seconds;
        auto& line = lines.emplace_back();
        print_time(std::back_inserter(line), begun);
        line += its.name.load();
        line += seconds >= 0 ? ": " + format_seconds(seconds)
                             : ": under way for " +
                                   format_seconds(static_cast<double>(wall_milliseconds() - begun) / 1e3);
    }
    return lines;
}

} // namespace gpu_sleep::log

namespace gpu_sleep::journal {

std::string encode(std::span<const Field> fields) {
    std::string entry;
    for (const auto& [name, value] : fields) entry += fmt::format("{}={}\n", name, printable(value));
    return entry;
}

bool send(const std::string& socket, std::span<const Field> fields) {
    const auto address = unix_address(socket);
    if (socket.empty() || !address || has_call_filter()) return false;
    const auto entry = encode(fields);
    const CancellationHold no_cancellation;
    const int errno_before = errno;
    const auto sender =
        opened([&] { return ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
    const auto sent = sender ? ::sendto(sender.get(), entry.data(), entry.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                                        reinterpret_cast<const sockaddr*>(&*address), sizeof(*address))
                             : -1;
    errno = errno_before;
    return sent == static_cast<ssize_t>(entry.size());
}

} // namespace gpu_sleep::journal
