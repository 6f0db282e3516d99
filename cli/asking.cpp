// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Find, ask, print.

#include "cli/asking.hpp"

#include "cli/json.hpp"
#include "cli/output.hpp"
#include "cli/render.hpp"

#include <utility>

namespace gpu_sleep::cli {

Result<std::vector<Outcome>> ask_targets(Finder& finder, const std::string& target, std::optional<uid_t> user,
                                         const protocol::Request& request, Milliseconds timeout) {
    auto targets = find_targets(finder, target, {.user = user});
    if (!targets) return std::move(targets).error();
    return ask_each(finder, *std::move(targets), request, timeout);
}

int tell_failure(const std::string& program, const OutputOptions& output, const Error& error) {
    print_error(render_error(program, "", error));
    if (output.json) {
        // It has failed anyway.
        [[maybe_unused]] const int written = print_result(program, to_json(program, error) + '\n');
    }
    return traits(error.code).exit_status;
}

int tell_all(const std::string& program, const OutputOptions& output, const std::vector<Outcome>& outcomes,
             const Words& words) {
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

} // namespace gpu_sleep::cli
