// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Drawing progress.

#include "cli/show/progress.hpp"

#include "base/text.hpp"
#include "cli/show/table.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

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
    case Phase::deep: return "waiting for the driver";
    case Phase::drained:
    case Phase::ready: return "waiting for the others";
    }
    return "working";
}

/// Columns of the terminal that a line may fill: in the last one, some terminals go on to the next line.
std::size_t columns_of(int fd) noexcept {
    constexpr std::size_t k_usual = 80;
    winsize size{};
    const bool is_known = ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return is_known ? std::size_t{size.ws_col} - 1 : k_usual;
}

} // namespace

std::string progress_line(const model::Progress& progress, std::size_t columns) {
    constexpr std::size_t k_widest_bar = 30;
    constexpr std::size_t k_narrowest_bar = 5;
    constexpr std::size_t k_min_columns = 4;
    columns = std::max(columns, k_min_columns);
    const auto doing = progress.in_call ? "waiting for the disk or the driver" : words_for(progress.phase);
    const auto words =
        progress.tag.empty() ? std::string(doing) : fmt::format("{}: {}", printable(progress.tag), doing);
    if (progress.total == 0) return shortened(words, columns);
    const auto share =
        std::min(1.0, static_cast<double>(progress.done) / static_cast<double>(progress.total));
    const auto figures = fmt::format("{:3.0f}%  {} of {}", share * 100, format_bytes(progress.done),
                                     format_bytes(progress.total));
    const auto others = fmt::format("{} [] {}", words, figures).size();
    const auto width = std::min(k_widest_bar, columns - std::min(columns, others));
    if (width < k_narrowest_bar) return shortened(fmt::format("{} {}", words, figures), columns);
    const auto filled = static_cast<std::size_t>(share * static_cast<double>(width));
    return fmt::format("{} [{:#<{}}{:-<{}}] {}", words, "", filled, "", width - filled, figures);
}

ProgressBar::~ProgressBar() {
    wipe();
}

void ProgressBar::wipe() noexcept {
    if (std::exchange(drawn_, false)) write(k_start_of_line);
}

void ProgressBar::end(pid_t pid) {
    latest_.erase(pid);
    wipe();
}

void ProgressBar::show(pid_t pid, const model::Progress& progress) {
    constexpr Milliseconds k_interval{100};
    if (!visible_) return;
    latest_[pid] = progress;
    const auto now = Clock::now();
    if (now < next_) return;
    next_ = now + k_interval;
    model::Progress sum{.phase = progress.phase, .tag = progress.tag, .in_call = progress.in_call};
    for (const auto& [each_pid, each] : latest_) {
        sum.done += each.done;
        sum.total += each.total;
    }
    write(std::string(k_start_of_line) + progress_line(sum, columns_of(fd_)));
    drawn_ = true;
}

void ProgressBar::write(std::string_view text) const noexcept {
    // A bar that cannot be drawn is no reason to fail.
    [[maybe_unused]] const auto written = ::write(fd_, text.data(), text.size());
}

} // namespace gpu_sleep::cli
