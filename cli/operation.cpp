// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Running a sleep or a wake from outside.

#include "cli/operation.hpp"

#include "cli/json.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/render.hpp"

#include <unistd.h>

namespace gpu_sleep::cli {
namespace {

/// The agent keeps the request's own limit; a command waits for longer before it calls the agent
/// unresponsive.
constexpr Milliseconds k_grace{10'000};

/// Whether `code` says that the process is gone, or its agent is.
bool is_gone(ErrorCode code) noexcept {
    return code == ErrorCode::no_process || code == ErrorCode::no_agent;
}

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

    const auto* const wake = std::get_if<model::WakeRequest>(&operation.request);
    const auto asked = wake ? model::Operation::wake : model::Operation::sleep;
    const bool has_waited = wake && wake->wait.count() > 0;
    std::vector<Outcome> outcomes;
    for (std::size_t i = 0; i < targets.size(); ++i)
        outcomes.push_back({std::move(targets[i].process), std::move(answers[i]), asked, has_waited});
    Finder finder; // sockets may have been made again
    settle(finder, outcomes);
    for (auto& outcome : found.unreached)
        outcomes.push_back({std::move(outcome.process), std::move(outcome.answer), asked, has_waited});
    return outcomes;
}

/// Says what failed on standard error. Returns what standard output is to say of `outcome`.
std::string show(const CommandRun& operation, const Outcome& outcome) {
    const auto complain = [&](const Error& error) {
        cli::complain(render_error(operation.program, purpose(operation, title(outcome.process)), error,
                                   outcome.has_waited));
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
        complain(fmt::format("{}: cannot write the result: {}; the exit status holds all the same\n",
                             operation.program, written.error().message));
    return status;
}

} // namespace

void settle(Finder& finder, std::vector<Outcome>& outcomes) {
    constexpr Milliseconds k_patience{2'000};
    std::vector<Target> targets;
    std::vector<Outcome*> asked;
    for (auto& outcome : outcomes) {
        const auto* error = std::get_if<Error>(&outcome.answer);
        const bool is_lost =
            error && (error->code == ErrorCode::connection_lost || error->code == ErrorCode::timed_out);
        if (!is_lost) continue;
        if (!finder.proc().is_running(outcome.process)) {
            outcome.answer = make_error(ErrorCode::no_process, "the process has ended meanwhile");
            continue;
        }
        auto socket = finder.connect(outcome.process);
        if (socket) {
            targets.push_back({outcome.process, *std::move(socket)});
            asked.push_back(&outcome);
        } else if (is_gone(socket.error().code)) {
            outcome.answer = std::move(socket).error();
        }
    }
    const auto found = ask_status(finder, std::move(targets), k_patience);
    for (std::size_t i = 0; i < asked.size(); ++i) {
        auto& answer = asked[i]->answer;
        if (const auto* report = std::get_if<model::Report>(&found[i].answer))
            answer = model::Failure{std::get<Error>(answer), report->state};
        else if (const auto* error = std::get_if<Error>(&found[i].answer); error && is_gone(error->code))
            answer = *error;
    }
}

int run(const CommandRun& operation) {
    raise_descriptor_limit();
    Finder finder;
    auto targets = find_targets(finder, operation.target);
    if (!targets) {
        complain(render_error(operation.program, "", targets.error()));
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
