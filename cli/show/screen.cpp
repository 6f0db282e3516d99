// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The alternate screen, and the signals that it must not outlive.

#include "cli/show/screen.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <ctime>

namespace gpu_sleep::cli {
namespace {

// Alternate screen, hidden cursor, lines that do not wrap; and back. Source: xterm, Control Sequences.
constexpr std::string_view k_enter = "\033[?1049h\033[?25l\033[?7l";
constexpr std::string_view k_leave = "\033[?7h\033[?25h\033[?1049l";

volatile std::sig_atomic_t g_is_entered = 0;
volatile std::sig_atomic_t g_is_lost = 0;  ///< others may have had the terminal: it is to be entered anew
volatile std::sig_atomic_t g_is_stale = 0; ///< what is shown is to be shown anew

/// Async-signal-safe.
void write_now(std::string_view text) noexcept {
    const int before = errno;
    [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, text.data(), text.size());
    errno = before;
}

void leave() noexcept {
    if (g_is_entered != 0) write_now(k_leave);
    g_is_entered = 0;
}

void set_handler(int number, void (*handler)(int)) noexcept {
    struct sigaction action = {};
    action.sa_handler = handler;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(number, &action, nullptr);
}

/// The signal does now what it does by default.
void act_by_default(int number) noexcept {
    set_handler(number, SIG_DFL);
    sigset_t only;
    ::sigemptyset(&only);
    ::sigaddset(&only, number);
    ::raise(number);
    ::sigprocmask(SIG_UNBLOCK, &only, nullptr); // it is blocked in its handler
}

void end(int number) {
    leave();
    act_by_default(number);
}

void stop(int number) {
    leave();
    g_is_stale = 1;
    act_by_default(number); // returns when the command is continued
    set_handler(number, stop);
}

void note(int number) {
    // It may have been entered since, and is still to be left.
    if (number == SIGCONT) g_is_lost = 1;
    g_is_stale = 1;
}

struct Handled {
    int number;
    void (*handler)(int);
};
constexpr Handled k_handled[] = {{SIGINT, end},   {SIGTERM, end},  {SIGHUP, end},   {SIGQUIT, end},
                                 {SIGTSTP, stop}, {SIGCONT, note}, {SIGWINCH, note}};

void replace_handler(int number, void (*from)(int), void (*to)(int)) noexcept {
    struct sigaction now = {};
    // What is ignored stays so.
    if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler == from) set_handler(number, to);
}

std::size_t variable(const char* name, std::size_t otherwise) noexcept {
    const char* const text = std::getenv(name);
    const auto value = text ? std::strtoul(text, nullptr, 10) : 0;
    return value > 0 && value < 10'000 ? value : otherwise;
}

} // namespace

bool Screen::is_possible() noexcept {
    const char* const terminal = std::getenv("TERM");
    const std::string_view name = terminal ? terminal : "";
    return !name.empty() && name != "dumb" && ::isatty(STDOUT_FILENO) == 1;
}

Screen::Screen() noexcept {
    // Taken while waiting alone, so that none is missed.
    sigset_t noted;
    ::sigemptyset(&noted);
    ::sigaddset(&noted, SIGCONT);
    ::sigaddset(&noted, SIGWINCH);
    ::sigprocmask(SIG_BLOCK, &noted, &before_);
    for (const auto& [number, handler] : k_handled) replace_handler(number, SIG_DFL, handler);
}

Screen::~Screen() {
    leave();
    for (const auto& [number, handler] : k_handled) replace_handler(number, handler, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

ScreenSize Screen::size() noexcept {
    winsize size{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0)
        return {size.ws_row, size.ws_col};
    constexpr std::size_t k_usual_lines = 24;
    constexpr std::size_t k_usual_columns = 80;
    return {variable("LINES", k_usual_lines), variable("COLUMNS", k_usual_columns)};
}

Result<void> Screen::show(std::string_view text) {
    const auto foreground = ::tcgetpgrp(STDOUT_FILENO); // fails where it is not the controlling terminal
    if (foreground >= 0 && foreground != ::getpgrp()) return {};
    // Stopped amid this, it would write the rest on the screen that it has left.
    sigset_t stops;
    sigset_t before;
    ::sigemptyset(&stops);
    ::sigaddset(&stops, SIGTSTP);
    ::sigprocmask(SIG_BLOCK, &stops, &before);
    if (g_is_entered == 0 || g_is_lost != 0) {
        g_is_lost = 0;
        g_is_entered = 1; // before, so that a signal in between leaves it
        write_now(k_enter);
    }
    auto drawn = draw(text, size());
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    return drawn;
}

bool Screen::wait_until(Clock::time_point time) noexcept {
    for (;;) {
        if (g_is_stale != 0) {
            g_is_stale = 0;
            return false;
        }
        const auto left = std::chrono::nanoseconds(time - Clock::now()).count();
        if (left <= 0) return true;
        constexpr std::int64_t k_second = 1'000'000'000;
        const timespec limit{static_cast<time_t>(left / k_second), static_cast<long>(left % k_second)};
        ::ppoll(nullptr, 0, &limit, &before_);
    }
}

} // namespace gpu_sleep::cli
