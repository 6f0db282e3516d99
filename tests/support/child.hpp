// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Child processes of benchmarks and of tests on the GPU: commands timed from start to exit, and servers that
// answer line by line. Needs nothing of the build: programs are found beside the running one.

#pragma once

#include "base/fd.hpp"
#include "base/result.hpp"
#include "base/units.hpp"

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpu_sleep::test {

/// The file of a program of this build, such as "gpu-sleep": it lies beside the running program.
[[nodiscard]] std::string sibling_program(std::string_view name);

/// What a command left behind.
struct CommandResult {
    int status = 0;     ///< exit status, or 128 and the number of the signal that ended it
    double seconds = 0; ///< from before it was started until its end was known
    std::string output; ///< its standard output
};

/// Runs a command, named by its file, to its end. Errors: io_failed (it could not be started).
[[nodiscard]] Result<CommandResult> run_command(std::vector<std::string> words);

/// A child that answers one line on standard output to each line on standard input. Killed when destroyed.
/// Move-only; one thread at a time.
class Server {
public:
    /// Starts `words`, the first of which names a file. Errors: io_failed.
    [[nodiscard]] static Result<Server> start(std::vector<std::string> words);

    Server(Server&& other) noexcept
        : pid_(std::exchange(other.pid_, 0)), socket_(std::move(other.socket_)),
          unread_(std::move(other.unread_)) {}
    Server& operator=(Server&&) = delete;
    ~Server();

    [[nodiscard]] pid_t pid() const noexcept { return pid_; }
    /// The answer to `line`. Errors: io_failed (it has ended), timed_out.
    [[nodiscard]] Result<std::string> ask(std::string_view line);

private:
    Server(pid_t pid, UniqueFd socket) noexcept : pid_(pid), socket_(std::move(socket)) {}
    [[nodiscard]] Result<std::string> read_line(Clock::time_point deadline);

    pid_t pid_;
    UniqueFd socket_; ///< its standard input and output
    std::string unread_;
};

} // namespace gpu_sleep::test
