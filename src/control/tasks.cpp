// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking agents, hearing them, and asking again those that were lost.

#include "control/tasks.hpp"

#include "control/driver_engine.hpp"
#include "control/need.hpp"

#include <set>

namespace gpu_sleep::control {
namespace {

/// Whether the agent has not had the last word.
bool is_lost(const client::Answer& answer) noexcept {
    const auto* error = std::get_if<Error>(&answer);
    return error && (error->code == ErrorCode::connection_lost || error->code == ErrorCode::timed_out ||
                     error->code == ErrorCode::outcome_unknown);
}

client::AnswerTimeout::Limits limits_of(const protocol::Request& request) {
    // The agent keeps the request's own limit, and then undoes what it did.
    constexpr Milliseconds k_grace{5'000};
    const auto& terms = *model::terms_in(request);
    const auto* const wake = std::get_if<model::WakeRequest>(&request);
    client::AnswerTimeout::Limits limits{
        .answer = terms.timeout, .grace = k_grace, .copies_freely = !terms.bounds_all};
    if (wake) {
        limits.answer += wake->wait;
        limits.afterwards = terms.timeout;
    }
    return limits;
}

/// Returns the most that a process of this machine can have to copy: no more than its GPUs have, or its host
/// memory.
Bytes machine_bytes() {
    const auto gpus = driver::look_at_gpus();
    if (!gpus) return client::AnswerTimeout::k_max_bytes;
    Bytes bytes = 0;
    for (const auto& gpu : *gpus) bytes += gpu.total;
    const auto pages = ::sysconf(_SC_PHYS_PAGES);
    return std::max(bytes,
                    pages < 0 ? Bytes{0} : static_cast<Bytes>(pages) * static_cast<Bytes>(::getpagesize()));
}

/// Has a wake that has found too little GPU memory say who has it.
void add_holders(Neighbours& neighbours, const protocol::Request& request, Outcome& outcome) {
    const auto* const wake = std::get_if<model::WakeRequest>(&request);
    auto* const failure = std::get_if<model::Failure>(&outcome.answer);
    if (!wake || !failure || failure->error.code != ErrorCode::out_of_device_memory) return;
    const auto holders =
        holders_beside(neighbours, outcome.process, wake->make_room, wake->gpus); // an agent names others
    if (holders.text.empty()) return;
    failure->error.message += "; " + holders.text;
    outcome.nobody_can_sleep = !holders.can_sleep;
}

/// Says why the wake of `process`, which has waited for long, goes on to wait until `until`.
void tell_wait(Finder& finder, Neighbours& neighbours, const Process& process, const model::WakeRequest& wake,
               Clock::time_point until, Listener& listener) {
    constexpr Milliseconds k_answer_time{500};
    auto socket = finder.connect(process);
    if (!socket) return;
    Targets target;
    target.reached.push_back({process, *std::move(socket)});
    const auto outcomes = ask_each(finder, std::move(target), model::StatusRequest(), k_answer_time);
    const auto* const report = std::get_if<model::Report>(&outcomes.front().answer);
    if (!report || report->wakes_waiting.empty()) return; // it waits for something else
    auto why = report->wakes_waiting.back().reason;
    const auto holders = holders_beside(neighbours, process, wake.make_room, wake.gpus).text;
    if (!holders.empty()) why += "; " + holders;
    listener.waits(process, why, until);
}

} // namespace

std::vector<Outcome> carry_out(Finder& finder, std::vector<Task> tasks, const Manner& manner,
                               Listener& listener, Interruptions& interruptions) {
    std::vector<client::Question> questions;
    questions.reserve(tasks.size());
    std::optional<DeepLocker> locker;
    Neighbours neighbours;
    const auto most = manner.end ? machine_bytes() : client::AnswerTimeout::k_max_bytes;
    for (auto& [target, request] : tasks) {
        auto limits = limits_of(*request);
        limits.bytes = most;
        questions.push_back(question_for(finder, target, *request, limits));
        const auto* const sleep = model::sleep_in(*request);
        if (!sleep || !sleep->deep || sleep->dry_run) continue;
        if (!locker) locker.emplace();
        questions.back().deep_steps = locker->steps(target.process, sleep->timeout);
    }
    const auto tell = [&](const Outcome& outcome) {
        if (!manner.passes_over || !is_passed_over(outcome)) listener.ended(outcome);
    };
    std::vector<Outcome> outcomes(tasks.size());
    std::set<std::size_t> untold;
    std::map<std::size_t, std::optional<Clock::time_point>> waits; ///< since when; nothing: it is told
    client::Conversations conversations(std::move(questions), &interruptions, manner.joint);
    auto end = manner.end.value_or(Clock::time_point::max());
    for (;;) {
        auto event = conversations.next(end);
        if (!event && conversations.are_over()) break;
        if (!event) {
            conversations.withdraw(make_error(ErrorCode::timed_out,
                                              "the pass had to end before this sleep was done; if the "
                                              "disk is slow, allow more time with --timeout"));
            end = Clock::time_point::max();
            continue;
        }
        const auto& [target, request] = tasks[event->question];
        if (const auto* const progress = std::get_if<model::Progress>(&event->what)) {
            const auto* const wake = std::get_if<model::WakeRequest>(request);
            if (wake && wake->wait > k_silence && progress->phase == model::Progress::Phase::waiting) {
                const auto [since, is_new] = waits.try_emplace(event->question, Clock::now());
                auto& begun = since->second;
                if (begun && Clock::now() - *begun >= k_silence) {
                    tell_wait(finder, neighbours, target.process, *wake, *begun + wake->wait, listener);
                    begun.reset();
                }
            }
            listener.progress(target.process, *progress);
        }
        if (std::holds_alternative<client::PastReturn>(event->what)) listener.past_return(target.process);
        auto* const answer = std::get_if<client::Answer>(&event->what);
        if (!answer) continue;
        auto& outcome = outcomes[event->question];
        outcome = outcome_of(finder, *request, target.process, std::move(*answer));
        if (manner.joint || is_lost(outcome.answer)) {
            untold.insert(event->question);
            continue;
        }
        add_holders(neighbours, *request, outcome);
        tell(outcome);
    }
    ask_again(finder, outcomes);
    for (const auto index : untold) tell(outcomes[index]);
    return outcomes;
}

Outcome outcome_of(Finder& finder, const protocol::Request& request, Process process, client::Answer answer) {
    const auto* const wake = std::get_if<model::WakeRequest>(&request);
    const auto* const sleep = model::sleep_in(request);
    if (auto* const error = std::get_if<Error>(&answer))
        *error = with_last_state(finder, process, std::move(*error));
    const auto* const report = std::get_if<model::Report>(&answer);
    const auto unreleased = report ? unreleased_by(request, *report) : 0;
    return {.process = std::move(process),
            .answer = std::move(answer),
            .asked = wake ? model::Operation::wake : model::Operation::sleep,
            .has_waited = wake && wake->wait.count() > 0,
            .unreleased = unreleased,
            .has_made_room = wake && wake->make_room,
            .deep_asked = sleep && sleep->deep};
}

void ask_again(Finder& finder, std::vector<Outcome>& outcomes) {
    constexpr Milliseconds k_patience{2'000};
    Targets targets;
    std::vector<Outcome*> asked;
    for (auto& outcome : outcomes) {
        if (!is_lost(outcome.answer)) continue;
        if (!finder.proc().is_running(outcome.process)) {
            outcome.answer = make_error(ErrorCode::no_process, "the process has ended");
            continue;
        }
        auto socket = finder.connect(outcome.process);
        if (!socket && is_gone(socket.error().code)) {
            outcome.answer = std::move(socket).error();
            continue;
        }
        // While an agent is still at work, it reports the state from before.
        const bool is_unknown = std::get<Error>(outcome.answer).code == ErrorCode::outcome_unknown;
        if (!socket || is_unknown || finder.proc().is_stopped(outcome.process)) continue;
        targets.reached.push_back({outcome.process, *std::move(socket)});
        asked.push_back(&outcome);
    }
    const auto found = ask_each(finder, std::move(targets), model::StatusRequest(), k_patience);
    for (std::size_t i = 0; i < asked.size(); ++i) {
        auto& answer = asked[i]->answer;
        if (const auto* report = std::get_if<model::Report>(&found[i].answer))
            answer = model::Failure{std::get<Error>(answer), report->state};
        else if (const auto* error = std::get_if<Error>(&found[i].answer); error && is_gone(error->code))
            answer = *error;
    }
}

} // namespace gpu_sleep::control
