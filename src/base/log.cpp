// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Log lines.

#include "base/log.hpp"

#include "base/cancellation.hpp"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace gpu_sleep::log {
namespace {

Severity threshold_from_environment() noexcept {
    const char* value = std::getenv("GPU_SLEEP_LOG");
    const std::string_view text = value ? value : "";
    if (text == "error") return Severity::error;
    if (text == "info") return Severity::info;
    if (text == "debug") return Severity::debug;
    return Severity::warning;
}

} // namespace

bool enabled(Severity severity) noexcept {
    static const Severity threshold = threshold_from_environment();
    return severity <= threshold;
}

void write(Severity, std::string_view message) noexcept {
    const CancellationHold no_cancellation;
    fmt::basic_memory_buffer<char, 512> line;
    fmt::format_to(std::back_inserter(line), "gpu-sleep[{}]: {}\n", ::getpid(), message);
    // One write: a short or failed one has nobody left to be told.
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

} // namespace gpu_sleep::log
