// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Writing to standard output.

#include "cli/show/output.hpp"

#include "base/files.hpp"
#include "base/sockets.hpp"
#include "base/text.hpp"
#include "cli/show/render.hpp"
#include "cli/show/table.hpp"

#include <cstring>
#include <iostream>

namespace gpu_sleep::cli {
namespace {

Result<void> write_all(std::string_view text) {
    const PipeSignalHold signal; // a reader that has gone is no reason to end without a status
    while (!text.empty()) {
        const auto written = ::write(STDOUT_FILENO, text.data(), text.size());
        if (written >= 0) {
            text.remove_prefix(static_cast<std::size_t>(written));
            continue;
        }
        const int reason = errno;
        if (reason == EPIPE) signal.take_back();
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

int print_result(std::string_view program, std::string_view text, int status) {
    const auto written = write_result(text);
    if (written) return status;
    print_error(render_error(program, "write the result", written.error()));
    return status == exit_status::done ? traits(written.error().code).exit_status : status;
}

void print_error(std::string_view text) {
    const PipeSignalHold signal; // as in write_all()
    std::cerr << printable_lines(text);
    signal.take_back();
}

Result<void> draw(std::string_view text, ScreenSize size) {
    std::vector<std::string> lines;
    while (const auto line = take_line(text)) lines.emplace_back(*line);
    const auto room = std::max<std::size_t>(size.lines, 1);
    if (lines.size() > room) {
        const auto more = fmt::format("... {} below", counted(lines.size() - room + 1, "line"));
        lines.resize(room - 1);
        lines.push_back(more);
    }
    std::string frame = "\033[H";
    for (std::size_t i = 0; i < lines.size(); ++i) {
        constexpr std::size_t k_least_columns = 3;
        const auto line = shortened(lines[i], std::max(size.columns, k_least_columns));
        if (i > 0) frame += "\r\n";
        frame += line;
        // Behind a line that fills the terminal the cursor stands on its last character.
        if (width_of(line) < size.columns) frame += "\033[K";
    }
    if (lines.size() < room) frame += "\r\n\033[J";
    return write_all(frame);
}

} // namespace gpu_sleep::cli
