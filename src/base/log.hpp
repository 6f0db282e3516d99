// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Diagnostics of the agent inside somebody else's process: whole lines on standard error, nothing else.

#pragma once

#include <fmt/format.h>

#include <string_view>

namespace gpu_sleep::log {

enum class Severity { error, warning, info, debug };

/// Reads the environment variable GPU_SLEEP_LOG ("error", "warning", "info", "debug"; default "warning")
/// once.
[[nodiscard]] bool enabled(Severity severity) noexcept;

/// Writes "gpu-sleep[PID]: MESSAGE\n" to standard error in one write, so that lines of threads do not mix;
/// what is longer than a pipe takes in one piece is cut. Never waits, fails or raises SIGPIPE: where nobody
/// reads, the line is dropped. Thread-safe.
void write(Severity severity, std::string_view message) noexcept;

template <class... Args>
void error(fmt::format_string<Args...> text, Args&&... args) {
    if (enabled(Severity::error)) write(Severity::error, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> text, Args&&... args) {
    if (enabled(Severity::warning)) write(Severity::warning, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> text, Args&&... args) {
    if (enabled(Severity::info)) write(Severity::info, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void debug(fmt::format_string<Args...> text, Args&&... args) {
    if (enabled(Severity::debug)) write(Severity::debug, fmt::format(text, std::forward<Args>(args)...));
}

} // namespace gpu_sleep::log
