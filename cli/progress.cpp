// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Drawing progress.

#include "cli/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace gpu_sleep::cli {
namespace {

using Phase = model::Progress::Phase;

constexpr std::string_view k_start_of_line = "\r\033[K"; // and wipe it

std::string_view words_for(Phase phase) noexcept {
    switch (phase) {
    case Phase::callbacks: return "asking the program";
    case Phase::drain: return "waiting for the GPU's work";
    case Phase::transfer: return "copying";
    case Phase::release: return "releasing";
    case Phase::verify: return "verifying";
    case Phase::waiting: return "waiting";
    }
    return "working";
}

} // namespace

std::string progress_line(const model::Progress& progress) {
    constexpr double k_bar_columns = 30;
    if (progress.total == 0) return std::string(words_for(progress.phase));
    const auto share =
        std::min(1.0, static_cast<double>(progress.done) / static_cast<double>(progress.total));
    const auto filled = static_cast<std::size_t>(share * k_bar_columns);
    const auto bar =
        std::string(filled, '#') + std::string(static_cast<std::size_t>(k_bar_columns) - filled, '-');
    return fmt::format("{} [{}] {:3.0f}%  {} of {}", words_for(progress.phase), bar, share * 100,
                       format_bytes(progress.done), format_bytes(progress.total));
}

ProgressBar::~ProgressBar() {
    if (drawn_) write(std::string(k_start_of_line));
}

void ProgressBar::show(std::size_t index, const model::Progress& progress) {
    constexpr Milliseconds k_interval{100};
    if (!visible_) return;
    latest_[index] = progress;
    const auto now = Clock::now();
    if (now < next_) return;
    next_ = now + k_interval;
    model::Progress sum{progress.phase, 0, 0};
    for (const auto& each : latest_) {
        sum.done += each.done;
        sum.total += each.total;
    }
    write(std::string(k_start_of_line) + progress_line(sum));
    drawn_ = true;
}

void ProgressBar::write(const std::string& text) const noexcept {
    // A bar that cannot be drawn is no reason to fail.
    [[maybe_unused]] const auto written = ::write(fd_, text.data(), text.size());
}

} // namespace gpu_sleep::cli
