// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The whole terminal, for a command that shows one text after another in the same place.

#pragma once

#include "base/result.hpp"
#include "base/units.hpp"
#include "cli/show/output.hpp"

#include <csignal>
#include <string_view>

namespace gpu_sleep::cli {

/// Has the terminal that is standard output show its alternate screen while it lives. What was there before
/// comes back at the end: when this is destroyed, when a signal ends the command, and while it is stopped.
/// Nothing of the terminal's settings is changed. One at a time, for a command with one thread.
class Screen {
public:
    /// Whether standard output is a terminal that can do that.
    [[nodiscard]] static bool is_possible() noexcept;

    Screen() noexcept;
    Screen(const Screen&) = delete;
    Screen& operator=(const Screen&) = delete;
    ~Screen();

    /// Where standard output is no terminal, what LINES and COLUMNS say, or 24 and 80.
    [[nodiscard]] static ScreenSize size() noexcept;
    /// Shows what of `text` there is room for, in place of what was shown; nothing while the command is in
    /// the background. Errors: io_failed.
    [[nodiscard]] Result<void> show(std::string_view text);
    /// Waits until then. False at once when the size has changed, or the command was stopped: it is to be
    /// shown anew.
    [[nodiscard]] bool wait_until(Clock::time_point time) noexcept;

private:
    sigset_t before_{}; ///< blocked signals
};

} // namespace gpu_sleep::cli
