// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Progress, the alternate screen, and the signals that the latter must not outlive.

#include "cli/show/terminal.hpp"

#include "base/text.hpp"
#include "cli/show/table.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>

namespace gpu_sleep::cli {
namespace {

using Phase = model::Progress::Phase;

constexpr std::string_view k_start_of_line = "\r\033[K"; // and wipe it

std::string_view words_for(Phase phase) noexcept {
    return word_of(phase,
                   {"asking the program", "waiting for the GPU's work", "copying", "releasing", "verifying",
                    "waiting", "waiting for the driver", "waiting for the others", "waiting for the others"});
}

/// Columns of the terminal that a line may fill: in the last one, some terminals go on to the next line.
std::size_t columns_of(int fd) noexcept {
    constexpr std::size_t k_usual = 80;
    winsize size{};
    const bool is_known = ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return is_known ? std::size_t{size.ws_col} - 1 : k_usual;
}

// Alternate screen, hidden cursor, lines that do not wrap; and back. Source: xterm, Control Sequences.
constexpr std::string_view k_enter = "\033[?1049h\033[?25l\033[?7l";
constexpr std::string_view k_leave = "\033[?7h\033[?25h\033[?1049l";

termios g_settings; ///< of standard input, from before
volatile std::sig_atomic_t g_is_changed = 0;
volatile std::sig_atomic_t g_is_entered = 0;
volatile std::sig_atomic_t g_is_lost = 0;  ///< others may have had the terminal: it is to be entered anew
volatile std::sig_atomic_t g_is_stale = 0; ///< what is shown is to be shown anew

/// Async-signal-safe.
void write_now(std::string_view text) noexcept {
    const int before = errno;
    [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, text.data(), text.size());
    errno = before;
}

/// Whether the shell has taken the terminal. Async-signal-safe.
bool is_in_background() noexcept {
    const auto foreground = ::tcgetpgrp(STDOUT_FILENO); // fails where it is not the controlling terminal
    return foreground >= 0 && foreground != ::getpgrp();
}

/// Async-signal-safe.
void leave_screen() noexcept {
    if (g_is_entered != 0) write_now(k_leave);
    g_is_entered = 0;
}

/// Async-signal-safe.
void leave() noexcept {
    leave_screen();
    if (g_is_changed != 0 && !is_in_background()) ::tcsetattr(STDIN_FILENO, TCSANOW, &g_settings);
    g_is_changed = 0;
}

/// Once more if it was stopped by SIGSTOP: a shell has given the terminal other settings since.
void take_keys() noexcept {
    if (g_is_changed == 0 && ::tcgetattr(STDIN_FILENO, &g_settings) != 0) return;
    auto settings = g_settings;
    settings.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON);
    g_is_changed = 1; // before, so that a signal in between undoes it
    ::tcsetattr(STDIN_FILENO, TCSANOW, &settings);
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
// From the background, what SIGSTOP has left on the screen is taken back all the same (SIGTTOU).
const Handled k_handled[] = {{SIGINT, end},   {SIGTERM, end},  {SIGHUP, end},    {SIGQUIT, end},
                             {SIGTSTP, stop}, {SIGCONT, note}, {SIGWINCH, note}, {SIGTTOU, SIG_IGN}};

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

std::string progress_line(const model::Progress& progress, std::size_t columns) {
    constexpr std::size_t k_widest_bar = 30;
    constexpr std::size_t k_narrowest_bar = 5;
    constexpr std::size_t k_min_columns = 4;
    columns = std::max(columns, k_min_columns);
    const auto words = progress.in_call ? "waiting for the disk or the driver" : words_for(progress.phase);
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
    model::Progress sum{.phase = progress.phase, .in_call = progress.in_call};
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

bool Screen::is_possible() noexcept {
    const char* const terminal = std::getenv("TERM");
    const std::string_view name = terminal ? terminal : "";
    return !name.empty() && name != "dumb" && ::isatty(STDOUT_FILENO) == 1;
}

Screen::Screen() noexcept : has_keys_(::isatty(STDIN_FILENO) == 1) {
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
    constexpr std::size_t k_no_limit = 10'000;
    return {variable("LINES", k_usual_lines),
            variable("COLUMNS", ::isatty(STDOUT_FILENO) == 1 ? k_usual_columns : k_no_limit)};
}

Result<void> Screen::show(std::string_view text) {
    if (is_in_background()) {
        leave_screen();
        return {};
    }
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
        if (has_keys_ && ::tcgetpgrp(STDOUT_FILENO) >= 0) take_keys();
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
        if (!keys_.empty()) return false;
        pollfd input{g_is_changed != 0 && g_is_entered != 0 && has_keys_ ? STDIN_FILENO : -1, POLLIN, 0};
        if (::ppoll(&input, 1, &limit, &before_) > 0) read_keys();
    }
}

void Screen::read_keys() {
    constexpr std::size_t k_most = 15; // what a string holds without memory of its own
    char keys[k_most];
    const auto count = ::read(STDIN_FILENO, keys, sizeof(keys));
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) has_keys_ = false;
    if (count > 0) keys_.append(keys, std::min(static_cast<std::size_t>(count), k_most - keys_.size()));
}

char Screen::take_key() {
    if (keys_.empty()) return '\0';
    // ESC [ A, or ESC O A if the terminal is in application mode.
    const bool is_arrow = keys_.size() >= 3 && keys_[0] == '\033' && (keys_[1] == '[' || keys_[1] == 'O');
    const char key = !is_arrow ? keys_[0] : keys_[2] == 'A' ? 'k' : keys_[2] == 'B' ? 'j' : '\033';
    keys_.erase(0, is_arrow ? 3 : 1);
    return key;
}

} // namespace gpu_sleep::cli
