// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What is drawn on a terminal over and over: a bar while an operation runs, and the whole screen.

#pragma once

#include "cli/show/output.hpp"
#include "model/report.hpp"

#include <sys/types.h>

#include <csignal>
#include <map>

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
    ~ProgressBar() { wipe(); }

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

/// Has the terminal that is standard output show its alternate screen while it lives. What was there before
/// comes back at the end: when this is destroyed, when a signal ends the command, and while it is stopped.
/// While it shows, keys are not echoed, and come one by one. One at a time, for a command with one thread.
class Screen {
public:
    /// Whether standard output is a terminal that can do that.
    [[nodiscard]] static bool is_possible() noexcept;

    Screen() noexcept;
    Screen(const Screen&) = delete;
    Screen& operator=(const Screen&) = delete;
    ~Screen();

    /// Where standard output is no terminal, what LINES and COLUMNS say, or 24 lines without a limit.
    [[nodiscard]] static ScreenSize size() noexcept;
    /// Shows what of `text` there is room for, in place of what was shown; nothing while the command is in
    /// the background. Errors: io_failed.
    [[nodiscard]] Result<void> show(std::string_view text);
    /// Waits until then. False at once when the size has changed, or the command was stopped: it is to be
    /// shown anew; or when a key was pressed: see take_key().
    [[nodiscard]] bool wait_until(Clock::time_point time) noexcept;
    /// The next key, once; 0 for none. The arrows up and down are 'k' and 'j'.
    [[nodiscard]] char take_key();
    /// Keys that were typed before a question answer nothing.
    void forget_keys() noexcept { keys_.clear(); }

private:
    void read_keys();

    sigset_t before_{}; ///< blocked signals
    bool has_keys_;     ///< standard input is a terminal, and goes on
    std::string keys_;  ///< typed, and not taken
};

} // namespace gpu_sleep::cli
