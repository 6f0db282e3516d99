// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Questions, outcomes, and their exit statuses.

#include "control/ask.hpp"

#include "base/files.hpp"

#include <ctime>
#include <iterator>

namespace gpu_sleep::control {

Bytes unreleased_by(const protocol::Request& request, const model::Report& report) noexcept {
    const auto* const sleep = model::sleep_in(request);
    if (!sleep || sleep->level == model::Level::pause || report.dry_run) return 0;
    if (report.deep) return 0; // the driver's part frees it all the same
    const bool may_not_come = sleep->min_awake || std::holds_alternative<model::IdleSleepRequest>(request);
    return may_not_come && !report.changed ? 0 : report.unreleased_bytes;
}

bool is_gone(ErrorCode code) noexcept {
    return code == ErrorCode::no_process || code == ErrorCode::no_agent;
}

bool is_passed_over(const Outcome& outcome) noexcept {
    const auto* const error = client::error_of(outcome.answer);
    return error && (is_gone(error->code) || error->code == ErrorCode::unknown_tag);
}

bool is_withdrawn(const Outcome& outcome) noexcept {
    const auto* const error = client::error_of(outcome.answer);
    return error && error->code == ErrorCode::cancelled;
}

void drop_ended(std::vector<Outcome>& outcomes) {
    std::erase_if(outcomes, [](const Outcome& outcome) {
        const auto* error = std::get_if<Error>(&outcome.answer);
        return error && is_gone(error->code);
    });
}

const char* silence(const Outcome& outcome) noexcept {
    const auto* const error = client::error_of(outcome.answer);
    return error && error->code == ErrorCode::stopped ? "stopped" : "no answer";
}

int exit_status_of(const Outcome& outcome) noexcept {
    if (const auto* failure = std::get_if<model::Failure>(&outcome.answer))
        return model::exit_status_of(*failure, outcome.asked);
    if (const auto* error = std::get_if<Error>(&outcome.answer)) return traits(error->code).exit_status;
    const auto& report = std::get<model::Report>(outcome.answer);
    if (report.refusal_code) // what it rehearses would fail
        return model::exit_status_of({make_error(*report.refusal_code, ""), report.state}, report.operation);
    return outcome.unreleased != 0 ? exit_status::failed_asleep : exit_status::done;
}

int exit_status_of(const std::vector<Outcome>& outcomes) noexcept {
    int status = exit_status::done;
    int withdrawn = exit_status::done;
    for (const auto& outcome : outcomes) {
        auto& worst = is_withdrawn(outcome) ? withdrawn : status;
        worst = worse_of(worst, exit_status_of(outcome));
    }
    return status == exit_status::done ? withdrawn : status;
}

namespace {

/// How its last sleep or wake has left a process that does not answer; see k_work_thread. The process may say
/// what it likes there: nothing is done by it.
std::string_view last_state(const ProcFs& proc, const Process& process) {
    const auto thread = proc.find_thread(process.pid, k_work_thread);
    const auto name = thread ? thread->second : std::string();
    if (name == k_work_thread) return "awake";
    if (name == k_work_thread_partial) return "partly asleep";
    if (name == k_work_thread_asleep) return "asleep";
    if (name == k_work_thread_paused) return "paused";
    return name == k_work_thread_deep ? "deeply asleep" : "";
}

/// A report, and how many seconds old it is.
struct Published {
    model::Report report;
    double age = 0;
};

/// What a stopped process that was left in `state` has written of itself, with the time since then added to
/// that in its state; nothing where that is not whole, not its own or says something else.
std::optional<Published> published(Finder& finder, const Process& process, std::string_view state) {
    constexpr std::size_t k_most = std::size_t{2} << 20; // more than a frame has
    const auto socket = finder.socket_of(process);
    if (state.empty() || !socket) return {};
    const auto file = open_file(socket->directory.get(), (socket->name + k_state_suffix).c_str(),
                                O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat its = {};
    if (::fstat(file.get(), &its) != 0 || !S_ISREG(its.st_mode) || its.st_uid != process.uid) return {};
    const auto text = read_open_file(file.get(), k_most);
    auto report = text ? client::report_in(*text) : std::nullopt;
    const bool is_awake = report && report->state == model::State::awake;
    if (!report || report->pid != process.inner_pid || is_awake != (state == "awake")) return {};
    const auto age = static_cast<double>(std::max<std::time_t>(0, std::time(nullptr) - its.st_mtime));
    report->state_seconds += age;
    return Published{*std::move(report), age};
}

/// Why `process` did not answer: it has ended, it runs another program, or `failure`.
Error explain(Finder& finder, const Process& process, const Error& failure) {
    if (!finder.proc().is_running(process)) return make_error(ErrorCode::no_process, "the process has ended");
    if (failure.code == ErrorCode::stopped) return with_last_state(finder, process, failure);
    if (failure.code != ErrorCode::connection_lost) return failure;
    auto socket = finder.connect(process);
    return !socket && socket.error().code == ErrorCode::no_agent ? std::move(socket).error() : failure;
}

} // namespace

void use_published(Finder& finder, Outcome& outcome) {
    const auto& process = outcome.process;
    if (std::string_view(silence(outcome)) != "stopped") return;
    auto its = published(finder, process, last_state(finder.proc(), process));
    if (!its) return;
    auto& [report, age] = *its;
    report.idle_seconds.reset();
    report.notes.insert(report.notes.begin(),
                        fmt::format("it is stopped; this was its state {} ago; to resume it: {}",
                                    format_seconds(age), finder.proc().how_to_go_on(process)));
    outcome.stopped_report_seconds = age;
    outcome.answer = std::move(report);
}

bool Targets::contains(const Process& process) const noexcept {
    const auto is_it = [&](const auto& each) { return each.process.pid == process.pid; };
    return std::ranges::any_of(reached, is_it) || std::ranges::any_of(unreached, is_it);
}

Error with_last_state(Finder& finder, const Process& process, Error failure) {
    const auto state =
        failure.code == ErrorCode::stopped ? last_state(finder.proc(), process) : std::string_view();
    if (state.empty()) return failure;
    failure.message += fmt::format("; last known state: {}", state);
    if (const auto its = published(finder, process, state))
        failure.message += fmt::format(", for {} so far", format_seconds(its->report.state_seconds));
    return failure;
}

client::Question question_for(Finder& finder, Target& target, const protocol::Request& request,
                              const client::AnswerTimeout::Limits& limits) {
    return {std::move(target.socket),
            &request,
            limits,
            [&finder, &process = target.process] { return finder.proc().is_stopped(process); },
            {},
            [&finder, &process = target.process] { return finder.connect(process); }};
}

std::vector<Outcome> ask_each(Finder& finder, Targets targets, const protocol::Request& request,
                              Milliseconds timeout) {
    std::vector<client::Question> questions;
    questions.reserve(targets.reached.size());
    for (auto& target : targets.reached)
        questions.push_back(question_for(finder, target, request, {.answer = timeout}));
    auto answers = client::ask_all(std::move(questions));
    std::vector<Outcome> outcomes;
    for (std::size_t i = 0; i < answers.size(); ++i) {
        auto& process = targets.reached[i].process;
        if (const auto* report = std::get_if<model::Report>(&answers[i])) process.name = report->name;
        if (const auto* error = std::get_if<Error>(&answers[i]))
            answers[i] = explain(finder, process, *error);
        outcomes.push_back({std::move(process), std::move(answers[i])});
    }
    std::move(targets.unreached.begin(), targets.unreached.end(), std::back_inserter(outcomes));
    return outcomes;
}

} // namespace gpu_sleep::control
