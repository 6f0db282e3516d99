// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Running a sleep or a wake from outside.

#include "cli/operation.hpp"

#include "cli/json.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/render.hpp"

#include <unistd.h>

#include <iostream>

namespace gpu_sleep::cli {
namespace {

/// The agent keeps the request's own limit; a command waits for longer before it calls the agent
/// unresponsive.
constexpr Milliseconds k_grace{10'000};

std::string purpose(const CommandRun& operation, const std::string& subject) {
    if (std::holds_alternative<model::SleepRequest>(operation.request))
        return fmt::format("put {} to sleep", subject);
    return fmt::format("wake {}", subject);
}

std::vector<Outcome> ask(const CommandRun& operation, Targets found) {
    auto& targets = found.reached;
    const bool visible = !operation.output.quiet && ::isatty(STDERR_FILENO) == 1;
    ProgressBar bar(STDERR_FILENO, visible, targets.size());
    std::vector<Question> questions;
    questions.reserve(targets.size());
    for (auto& target : targets)
        questions.push_back({std::move(target.socket), operation.request, operation.limit + k_grace});
    auto answers = ask_all(std::move(questions), [&](std::size_t index, const model::Progress& progress) {
        bar.show(index, progress);
    });

    const auto asked = std::holds_alternative<model::WakeRequest>(operation.request)
                           ? model::Operation::wake
                           : model::Operation::sleep;
    std::vector<Outcome> outcomes;
    for (std::size_t i = 0; i < targets.size(); ++i) {
        const auto* error = std::get_if<Error>(&answers[i]);
        if (error && (error->code == ErrorCode::connection_lost || error->code == ErrorCode::timed_out))
            answers[i] = settle(Finder(), targets[i].process, *error);
        outcomes.push_back({std::move(targets[i].process), std::move(answers[i]), asked});
    }
    for (auto& outcome : found.unreached)
        outcomes.push_back({std::move(outcome.process), std::move(outcome.answer), asked});
    return outcomes;
}

/// Says what failed on standard error. Returns what standard output is to say of `outcome`.
std::string show(const CommandRun& operation, const Outcome& outcome) {
    const auto complain = [&](const Error& error) {
        std::cerr << render_error(operation.program, purpose(operation, title(outcome.process)), error);
        return std::string();
    };
    if (const auto* failure = std::get_if<model::Failure>(&outcome.answer)) return complain(failure->error);
    if (const auto* error = std::get_if<Error>(&outcome.answer)) return complain(*error);
    if (operation.output.json || operation.output.quiet) return {};
    return render_operation(outcome.process, std::get<model::Report>(outcome.answer));
}

/// The status says how the processes are, so it stays what it is if nobody gets to read the result.
int finish(const CommandRun& operation, const std::string& text, int status) {
    if (const auto written = write_result(text); !written)
        std::cerr << fmt::format("{}: cannot write the result: {}; the exit status holds all the same\n",
                                 operation.program, written.error().message);
    return status;
}

} // namespace

Answer settle(Finder finder, const Process& process, const Error& lost) {
    constexpr Milliseconds k_patience{2'000};
    if (!finder.proc().is_running(process))
        return make_error(ErrorCode::no_process, "the process has ended meanwhile");
    auto socket = finder.connect(process);
    if (!socket)
        return socket.error().code == ErrorCode::no_process ? std::move(socket).error() : Error(lost);
    std::vector<Target> targets;
    targets.push_back({process, *std::move(socket)});
    const auto outcomes = ask_status(finder, std::move(targets), k_patience);
    const auto& answer = outcomes.front().answer;
    if (const auto* report = std::get_if<model::Report>(&answer)) return model::Failure{lost, report->state};
    const auto* error = std::get_if<Error>(&answer);
    return error && error->code == ErrorCode::no_process ? *error : lost;
}

int run(const CommandRun& operation) {
    Finder finder;
    auto targets = find_targets(finder, operation.target);
    if (!targets) {
        std::cerr << render_error(operation.program, "", targets.error());
        const auto text =
            operation.output.json ? to_json(operation.program, targets.error()) + '\n' : std::string();
        return finish(operation, text, traits(targets.error().code).exit_status);
    }
    const auto outcomes = ask(operation, *std::move(targets));
    std::string text;
    for (const auto& outcome : outcomes) text += show(operation, outcome);
    if (operation.output.json) text = to_json(operation.program, outcomes) + '\n';
    return finish(operation, text, exit_status_of(outcomes));
}

} // namespace gpu_sleep::cli
