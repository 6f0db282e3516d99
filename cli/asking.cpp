// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Find, ask, print; rehearse, tell, ask.

#include "cli/asking.hpp"

#include "base/text.hpp"
#include "cli/json.hpp"
#include "cli/output.hpp"
#include "cli/render.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <iostream>
#include <unistd.h>
#include <utility>

namespace gpu_sleep::cli {

Result<std::vector<control::Outcome>> ask_targets(control::Finder& finder, const std::string& target,
                                                  std::optional<uid_t> user, const protocol::Request& request,
                                                  Milliseconds timeout) {
    auto targets = find_targets(finder, target, {.user = user});
    if (!targets) return std::move(targets).error();
    return ask_each(finder, *std::move(targets), request, timeout);
}

int tell_all(const std::string& program, const OutputOptions& output,
             const std::vector<control::Outcome>& outcomes, const Words& words) {
    std::string text;
    for (const auto& outcome : outcomes) {
        const auto subject = title(outcome.process);
        if (const auto* const error = peers::error_of(outcome.answer))
            print_error(render_error(program, "ask " + subject, without(subject, *error)));
        else if (!output.quiet)
            text += words(outcome.process, std::get<model::Report>(outcome.answer));
    }
    if (output.json) text = to_json(program, outcomes) + '\n';
    const int written = print_result(program, text);
    const int status = exit_status_of(outcomes);
    return status == exit_status::done ? written : status;
}

std::vector<std::string> losses_of(const model::SleepRequest& request, control::Finder& finder,
                                   const std::vector<control::Target>& targets) {
    constexpr Milliseconds k_patience{5'000};
    auto rehearsal = request;
    rehearsal.dry_run = true;
    rehearsal.joint = false;
    std::vector<control::Target> asked;
    for (const auto& target : targets)
        if (auto socket = finder.connect(target.process))
            asked.push_back({target.process, *std::move(socket)});
    std::vector<std::string> losses;
    for (const auto& outcome : ask_each(finder, std::move(asked), rehearsal, k_patience)) {
        const auto* const report = std::get_if<model::Report>(&outcome.answer);
        if (!report || report->dropped_without_refill.empty()) continue;
        const auto& tags = report->dropped_without_refill;
        Bytes bytes = 0;
        for (const auto& row : report->tags)
            if (std::find(tags.begin(), tags.end(), row.tag) != tags.end()) bytes += row.bytes - row.dropped;
        losses.push_back(fmt::format("{} loses {} that it has not declared refillable: {}",
                                     title(outcome.process), format_bytes(bytes),
                                     printable(fmt::format("{}", fmt::join(tags, ", ")))));
    }
    return losses;
}

bool accepts(const std::string& program, const std::vector<std::string>& losses, bool quiet) {
    const bool is_asked = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1;
    if (quiet && !is_asked) return true;
    std::string text;
    for (const auto& loss : losses) text += fmt::format("{}: {}\n", program, loss);
    if (is_asked) text += fmt::format("{}: go on? [y/N] ", program);
    print_error(text);
    if (!is_asked) return true;
    std::string answer;
    std::getline(std::cin, answer);
    if (answer == "y" || answer == "yes") return true;
    print_error(fmt::format("{}: nothing was changed\n", program));
    return false;
}

} // namespace gpu_sleep::cli
