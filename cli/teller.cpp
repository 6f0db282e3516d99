// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Results on standard output, failures on standard error.

#include "cli/teller.hpp"

#include "cli/joint_operation.hpp"
#include "cli/output.hpp"
#include "cli/render.hpp"
#include "cli/render_lines.hpp"

#include <utility>
#include <variant>

namespace gpu_sleep::cli {
namespace {

/// Whether nobody in particular was named.
bool is_for_all(const CommandRun& operation) noexcept {
    return operation.targets.empty() && operation.selection.group.empty();
}

/// What could not be done.
std::string purpose(const CommandRun& operation, const std::string& subject, ErrorCode failure) {
    if (failure == ErrorCode::outcome_unknown)
        return fmt::format("say whether {} is {}", subject, is_sleep(operation) ? "asleep" : "awake");
    const auto* const sleep = std::get_if<model::SleepRequest>(&operation.request);
    if (sleep && sleep->release_retained) return fmt::format("have {} give back what it retains", subject);
    if (sleep && sleep->level == model::Level::pause) return fmt::format("pause {}", subject);
    return sleep ? fmt::format("put {} to sleep", subject) : fmt::format("wake {}", subject);
}

} // namespace

bool is_gone(ErrorCode code) noexcept {
    return code == ErrorCode::no_process || code == ErrorCode::no_agent;
}

bool is_passed_over(const CommandRun& operation, const control::Outcome& outcome) noexcept {
    const auto* const error = peers::error_of(outcome.answer);
    return is_for_all(operation) && error && (is_gone(error->code) || error->code == ErrorCode::unknown_tag);
}

void Teller::tell(const control::Outcome& outcome) {
    if (is_passed_over(operation_, outcome)) return;
    if (const auto* const error = peers::error_of(outcome.answer))
        print_error(outcome, *error);
    else
        tell_done(outcome);
}

void Teller::tell_end(const std::vector<control::Outcome>& outcomes) {
    if (operation_.output.json || operation_.output.quiet) return;
    if (is_for_all(operation_) && !has_told_) print("nothing to do\n");
    if (!operation_.selection.is_joint()) print(render_total(outcomes));
}

void Teller::tell_sum(const std::vector<control::Outcome>& outcomes) {
    const auto* const sleep = std::get_if<model::SleepRequest>(&operation_.request);
    const auto text = render_together(outcomes, sleep);
    const bool has_failed = exit_status_of(outcomes) != exit_status::done;
    if (has_failed)
        cli::print_error(fmt::format("{}: {}", operation_.program, text));
    else if (!operation_.output.json && !operation_.output.quiet)
        print(text);
}

void Teller::print(const std::string& text) {
    const auto written = write_result(text);
    if (written || std::exchange(has_complained_, true)) return;
    cli::print_error(fmt::format("{}: cannot write the result: {}; the exit status is valid all the same\n",
                                 operation_.program, written.error().message));
}

void Teller::tell_past_return(const control::Process& process) const {
    cli::print_error(fmt::format("{}: {} is past the point of no return; waiting for it to end\n",
                                 operation_.program, title(process)));
}

void Teller::tell_done(const control::Outcome& outcome) {
    if (is_for_all(operation_) && !does_something(std::get<model::Report>(outcome.answer))) return;
    has_told_ = true;
    if (operation_.output.json || operation_.output.quiet) return;
    const auto report = numbers_.in(std::get<model::Report>(outcome.answer));
    print(outcome.by_driver ? render_driver_operation(outcome.process, report)
                            : render_operation(outcome.process, report,
                                               std::get_if<model::SleepRequest>(&operation_.request)));
}

void Teller::print_error(const control::Outcome& outcome, const Error& error) {
    has_told_ = true;
    const auto subject = title(outcome.process);
    cli::print_error(render_error(operation_.program, purpose(operation_, subject, error.code),
                                  without(subject, error), outcome.has_waited));
}

} // namespace gpu_sleep::cli
