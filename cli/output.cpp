// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Writing to standard output.

#include "cli/output.hpp"

#include "base/text.hpp"
#include "cli/render.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>

namespace gpu_sleep::cli {
namespace {

Result<void> write_all(std::string_view text) {
    std::signal(SIGPIPE, SIG_IGN); // a reader that has gone is no reason to end without a status
    while (!text.empty()) {
        const auto written = ::write(STDOUT_FILENO, text.data(), text.size());
        if (written >= 0) {
            text.remove_prefix(static_cast<std::size_t>(written));
            continue;
        }
        const int reason = errno;
        pollfd writable{STDOUT_FILENO, POLLOUT, 0};
        if (reason == EAGAIN) ::poll(&writable, 1, -1); // whoever else has it made it so
        if (reason != EAGAIN && reason != EINTR)
            return Error{ErrorCode::io_failed, std::strerror(reason), "write", reason};
    }
    return {};
}

} // namespace

Result<void> write_result(std::string_view text) {
    return write_all(printable_lines(text));
}

int print_result(std::string_view program, std::string_view text) {
    const auto written = write_result(text);
    if (written) return exit_status::done;
    print_error(render_error(program, "write the result", written.error()));
    return traits(written.error().code).exit_status;
}

void print_error(std::string_view text) {
    std::cerr << printable_lines(text);
}

void clear_screen() {
    // The listing that follows tells what becomes of standard output.
    static_cast<void>(write_all("\033[H\033[2J"));
}

} // namespace gpu_sleep::cli
