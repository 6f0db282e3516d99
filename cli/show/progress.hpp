// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A bar on standard error while an operation runs.

#pragma once

#include "model/report.hpp"

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace gpu_sleep::cli {

/// One line of at most `columns`, and 4 at least: phase, bar, figures; no bar if there are no figures, or if
/// it does not fit.
[[nodiscard]] std::string progress_line(const model::Progress& progress, std::size_t columns = 80);

/// Draws on a terminal, over and over in one line, the sum of what several agents report. Not thread-safe.
class ProgressBar {
public:
    /// `fd` is borrowed and is written to only if `visible`.
    ProgressBar(int fd, bool visible) noexcept : fd_(fd), visible_(visible) {}
    ProgressBar(const ProgressBar&) = delete;
    ProgressBar& operator=(const ProgressBar&) = delete;
    /// Wipes the line.
    ~ProgressBar();

    /// Takes the progress of a process. Draws nothing during the first 200 ms.
    void show(pid_t pid, const model::Progress& progress);
    /// Removes the process, which has ended, and wipes the line for other output.
    void end(pid_t pid);
    void wipe() noexcept;

private:
    void write(std::string_view text) const noexcept;

    int fd_;
    bool visible_;
    bool drawn_ = false;
    Clock::time_point next_ = Clock::now() + Milliseconds{200}; ///< when to draw again
    std::map<pid_t, model::Progress> latest_;
};

} // namespace gpu_sleep::cli
