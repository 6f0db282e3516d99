// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Rows, their check, and the process between a program and its door.

#include "cli/http/door.hpp"

#include "base/files.hpp"

#include <fmt/format.h>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>

namespace gpu_sleep::cli::http {
namespace {

/// The first line of the file into `token`. Returns what is wrong with it, or nothing.
std::string read_token(const std::string& file, std::string& token) {
    const auto text = read_small_file(file);
    if (!text) return fmt::format("{} cannot be read: {}", file, std::strerror(errno));
    std::string_view rest = *text;
    token = take_line(rest).value_or("");
    const auto problem = token_problem(token);
    return problem.empty() ? problem : fmt::format("{}: {}", file, problem);
}

UniqueFd watch(pid_t pid) {
    return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

/// Whether `fd` becomes readable, or its process ends, in that time. Negative: no limit.
bool is_ready(int fd, int milliseconds) {
    pollfd polled{fd, POLLIN, 0};
    int ready = 0;
    while ((ready = ::poll(&polled, 1, milliseconds)) < 0 && errno == EINTR) {
    }
    return ready > 0;
}

/// What ends a process by default. The process between stays, or what the door became would be an orphan.
constexpr std::array k_ends{SIGINT, SIGTERM, SIGHUP};

/// One run of the door.
struct Run {
    pid_t pid = -1;
    UniqueFd process;
    UniqueFd output; ///< its first line says that it listens
};

Run start(const std::vector<char*>& arguments) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
    Run run{::fork(), {}, UniqueFd(ends[0])};
    const UniqueFd its(ends[1]);
    if (run.pid == 0) {
        for (const int number : k_ends) std::signal(number, SIG_DFL);
        ::prctl(PR_SET_PDEATHSIG, SIGKILL); // or the program might be given it
        ::dup2(its.get(), STDOUT_FILENO);
        ::execv(arguments.front(), arguments.data());
        ::_exit(EXIT_FAILURE);
    }
    run.process = watch(run.pid);
    return run;
}

/// What an ended process has exited with; EXIT_FAILURE where a signal ended it.
int exit_status_in(int waited) noexcept {
    return WIFEXITED(waited) ? WEXITSTATUS(waited) : EXIT_FAILURE;
}

/// Waits for the end of the program or of the door, and sees to it that the door has ended. Returns the
/// door's exit status.
int attend(Run& run, int program) {
    std::array<pollfd, 2> polled{pollfd{program, POLLIN, 0}, pollfd{run.process.get(), POLLIN, 0}};
    while (::poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) {
    }
    constexpr int k_patience_ms = 5'000; // it sees the program's end itself
    if (polled[1].revents == 0 && !is_ready(run.process.get(), k_patience_ms)) ::kill(run.pid, SIGKILL);
    int waited = 0;
    ::waitpid(run.pid, &waited, 0);
    return exit_status_in(waited);
}

/// In the process between, for as long as the program lives. Says on `ready` that the door listens.
[[noreturn]] void attend_door(const std::vector<char*>& arguments, UniqueFd program, UniqueFd ready) {
    constexpr std::chrono::seconds k_shortest{1}, k_longest{60};
    auto rest = k_shortest;
    for (;;) {
        const auto begin = Clock::now();
        auto run = start(arguments);
        char first = 0;
        const bool listens = run.pid > 0 && ::read(run.output.get(), &first, 1) == 1;
        if (ready && listens) static_cast<void>(::write(ready.get(), &first, 1));
        const int status = run.pid > 0 ? attend(run, program.get()) : EXIT_FAILURE;
        if (ready && !listens) ::_exit(status);
        ready.reset();
        rest = Clock::now() - begin > k_longest ? k_shortest : std::min(2 * rest, k_longest);
        if (is_ready(program.get(), static_cast<int>(Milliseconds(rest).count()))) ::_exit(EXIT_SUCCESS);
    }
}

/// Away from the program's terminal, signals and descriptors, but for its standard error.
void leave_program(std::array<int, 2> kept) {
    ::setsid();
    const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
    ::dup2(nothing.get(), STDIN_FILENO);
    ::dup2(nothing.get(), STDOUT_FILENO);
    std::ranges::sort(kept);
    auto from = static_cast<unsigned>(STDERR_FILENO) + 1;
    for (const int each : kept) {
        const auto number = static_cast<unsigned>(each);
        if (number > from) ::syscall(SYS_close_range, from, number - 1, 0U);
        from = number + 1;
    }
    ::syscall(SYS_close_range, from, ~0U, 0U);
}

} // namespace

std::string token_problem(std::string_view token) {
    constexpr std::size_t k_shortest = 16;
    if (token.size() < k_shortest)
        return fmt::format("a token has at least {} characters, such as those of: openssl rand -hex 32",
                           k_shortest);
    const bool is_plain = std::ranges::all_of(token, [](char c) { return c > ' ' && c < 0x7F; });
    return is_plain ? "" : "a token has only ASCII characters, and no spaces";
}

std::vector<usage::Row> rows(DoorOptions& options) {
    const auto set_token = [&options](const std::string& file) {
        options.token_file = file;
        return read_token(file, options.token);
    };
    return {
        usage::brief({"--http", usage::parsed("ADDRESS", parse_address, options.address),
                      "Answer HTTP requests at a local port (8080), a Unix socket (unix:/PATH) or an address "
                      "with a port"}),
        {"--http-token", usage::text("FILE", set_token),
         "File that contains a token; callers may authenticate with it"}};
}

std::string complete(DoorOptions& options) {
    if (!options.address)
        return options.token_file.empty() ? "" : "--http-token can be used only with --http";
    if (const auto* const token = std::getenv(k_token_variable); token && options.token.empty()) {
        options.token = token;
        const auto problem = options.token.empty() ? "" : token_problem(options.token);
        if (!problem.empty()) return fmt::format("{}: {}", k_token_variable, problem);
    }
    if (options.address->is_local() || !options.token.empty()) return "";
    return "--http: others reach this address, too: give a token, by --http-token";
}

std::vector<std::string> words_of(const DoorOptions& options) {
    std::vector<std::string> words{"--http=" + to_string(*options.address)};
    if (!options.token_file.empty()) words.push_back("--http-token=" + options.token_file);
    return words;
}

Result<void> start_beside(std::vector<std::string> words) {
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    if (::access(words.front().c_str(), X_OK) != 0)
        return make_error(ErrorCode::io_failed,
                          "{} is not there; it is built where libmicrohttpd is installed", words.front());
    auto program = watch(::getpid());
    std::array<int, 2> ends{};
    if (!program || ::pipe2(ends.data(), O_CLOEXEC) != 0)
        return make_error(ErrorCode::io_failed, "cannot start {}: {}", words.front(), std::strerror(errno));
    const UniqueFd told(ends[0]);
    UniqueFd ready(ends[1]);
    // A child that sends no signal at its end is found by no wait() without __WCLONE; the door itself would
    // be, for execve() makes an ordinary child of whoever calls it. Source: clone(2), "The child termination
    // signal".
    const auto pid = static_cast<pid_t>(::syscall(SYS_clone, 0UL, nullptr, nullptr, nullptr, 0UL));
    if (pid == 0) {
        for (const int number : k_ends) std::signal(number, SIG_IGN);
        std::signal(SIGCHLD, SIG_DFL); // or the door would leave no status
        leave_program({program.get(), ready.get()});
        attend_door(arguments, std::move(program), std::move(ready));
    }
    if (pid < 0)
        return make_error(ErrorCode::io_failed, "cannot start {}: {}", words.front(), std::strerror(errno));
    ready.reset();
    char first = 0;
    if (::read(told.get(), &first, 1) == 1) return {};
    int waited = 0;
    ::waitpid(pid, &waited, __WCLONE);
    const auto status = exit_status_in(waited);
    return make_error(status == exit_status::usage ? ErrorCode::invalid_argument : ErrorCode::io_failed,
                      "--http: the HTTP server cannot start, so the program was not started");
}

} // namespace gpu_sleep::cli::http
