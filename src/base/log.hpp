// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the agent tells from inside somebody else's process: whole lines on standard error, and entries
// with fields for the journal of systemd, by its own protocol. The steps that sleeps and wakes take.

#pragma once

#include "base/units.hpp"

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::log {

enum class Severity { error, warning, info, debug };

/// All that parse_severity() knows, for a person.
inline constexpr std::string_view k_severities = "error, warning, info or debug";

/// The word's value, or nothing for any other word.
[[nodiscard]] std::optional<Severity> parse_severity(std::string_view word) noexcept;

/// Reads the environment variable GPU_SLEEP_LOG ("error", "warning", "info", "debug"; default "warning")
/// once.
[[nodiscard]] bool enabled(Severity severity) noexcept;

/// Has lines begin with `name`, which is static, in place of "gpu-sleep": for commands, before they speak.
void name_lines(const char* name) noexcept;

/// Writes "gpu-sleep[PID]: MESSAGE\n" to standard error in one write, so that lines of threads do not mix;
/// where "debug" is enabled, with the time of day (UTC) before MESSAGE;
/// lines longer than an atomic write to a pipe are cut, and characters that are not printable() are replaced.
/// Never waits, fails or raises SIGPIPE: if nobody reads, the line is dropped. So it is where descriptor 2 is
/// not as it was when this library was loaded, unless it is a terminal, a pipe, or a file that is open for
/// writing alone. Thread-safe.
void write(Severity severity, std::string_view message) noexcept;
/// The same with formatting. If there is no memory for a long line, only its beginning is written.
void write_formatted(Severity severity, fmt::string_view text, fmt::format_args args) noexcept;

template <class... Args>
void error(fmt::format_string<Args...> text, const Args&... args) noexcept {
    if (enabled(Severity::error)) write_formatted(Severity::error, text, fmt::make_format_args(args...));
}
template <class... Args>
void warning(fmt::format_string<Args...> text, const Args&... args) noexcept {
    if (enabled(Severity::warning)) write_formatted(Severity::warning, text, fmt::make_format_args(args...));
}
template <class... Args>
void info(fmt::format_string<Args...> text, const Args&... args) noexcept {
    if (enabled(Severity::info)) write_formatted(Severity::info, text, fmt::make_format_args(args...));
}
template <class... Args>
void debug(fmt::format_string<Args...> text, const Args&... args) noexcept {
    if (enabled(Severity::debug)) write_formatted(Severity::debug, text, fmt::make_format_args(args...));
}

/// One step of a sleep or a wake, for as long as this lives. Says at "debug" when it begins, and when it has
/// ended and after how long. Takes no lock and allocates nothing unless it speaks. Thread-safe.
class Step {
public:
    /// `name` is static, and says what is done without naming a process, a tag or a path.
    explicit Step(const char* name) noexcept;
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

private:
    const char* const name_;
    const Clock::time_point begun_ = Clock::now();
    const std::uint64_t number_;
};

/// The last steps of this process, the oldest first, as "07:46:50.123 drain: 1.2 ms", or "...: under way for
/// 12 s". Thread-safe. May throw for want of memory.
[[nodiscard]] std::vector<std::string> recent_steps();

} // namespace gpu_sleep::log

namespace gpu_sleep::journal {

inline constexpr const char* k_socket = "/run/systemd/journal/socket";

struct Field {
    std::string_view name; ///< capital letters, digits and '_'
    std::string_view value;
};

/// The datagram of an entry, with values made printable(). Source: systemd, Native Journal Protocol.
[[nodiscard]] std::string encode(std::span<const Field> fields);

/// Sends an entry to the journal that listens on `socket`. Nothing waits: an entry that is not taken at once,
/// or that nobody is there to take, is lost; so is one of a process with a filter of system calls, which
/// might end it for this one. False: it is lost. Thread-safe. May throw for want of memory.
bool send(const std::string& socket, std::span<const Field> fields);

} // namespace gpu_sleep::journal
