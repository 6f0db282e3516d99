// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Running a sleep or a wake from outside.

#include "cli/operation.hpp"

#include "cli/asking.hpp"
#include "cli/driver_engine.hpp"
#include "cli/gpus.hpp"
#include "cli/interruptions.hpp"
#include "cli/joint_operation.hpp"
#include "cli/json.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/teller.hpp"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace gpu_sleep::cli {
namespace {

/// The agent keeps the request's own limit, and then undoes what it did; a command waits for longer before it
/// calls the agent unresponsive.
constexpr Milliseconds k_grace{5'000};

/// Whether the agent has not had the last word.
bool is_lost(const Answer& answer) noexcept {
    const auto* error = std::get_if<Error>(&answer);
    return error && (error->code == ErrorCode::connection_lost || error->code == ErrorCode::timed_out ||
                     error->code == ErrorCode::outcome_unknown);
}

peers::AnswerTimeout::Limits limits_of(const CommandRun& operation) {
    if (const auto* sleep = std::get_if<model::SleepRequest>(&operation.request))
        return {sleep->timeout, k_grace, !sleep->bounds_all, {}, 1};
    const auto& wake = std::get<model::WakeRequest>(operation.request);
    return {wake.timeout + wake.wait, k_grace, !wake.bounds_all, wake.timeout, wake.order.size() + 1};
}

model::Operation asked_by(const CommandRun& operation) noexcept {
    return is_sleep(operation) ? model::Operation::sleep : model::Operation::wake;
}

Outcome outcome_of(const CommandRun& operation, Process process, Answer answer) {
    const auto* const wake = std::get_if<model::WakeRequest>(&operation.request);
    if (const auto* const error = std::get_if<Error>(&answer)) {
        Finder finder;
        answer = with_last_state(finder, process, *error);
    }
    return {std::move(process), std::move(answer), asked_by(operation), wake && wake->wait.count() > 0};
}

/// `answer` with who has the GPU memory that a wake has found missing.
peers::Answer with_holders(const CommandRun& operation, const Process& process, Answer answer) {
    const auto* const wake = std::get_if<model::WakeRequest>(&operation.request);
    auto* const failure = std::get_if<model::Failure>(&answer);
    if (!wake || !failure || failure->error.code != ErrorCode::out_of_device_memory) return answer;
    const auto holders =
        holders_beside(process, wake->make_room, wake->gpus); // whom the agent has asked, it names
    if (!holders.empty()) failure->error.message += "; " + holders;
    return answer;
}

/// Asks all, and tells of each what it answers as it comes: one that takes its time keeps nobody from hearing
/// of the others.
std::vector<Answer> follow_all(const CommandRun& operation, std::vector<Target>& targets, Finder& finder,
                               Teller& teller, Interruptions& interruptions) {
    const bool visible = !operation.output.quiet && ::isatty(STDERR_FILENO) == 1;
    ProgressBar bar(STDERR_FILENO, visible, targets.size());
    std::vector<peers::Question> questions;
    questions.reserve(targets.size());
    std::optional<DeepLocker> locker;
    const auto* const sleep = std::get_if<model::SleepRequest>(&operation.request);
    if (sleep && sleep->deep) locker.emplace();
    for (auto& target : targets) {
        questions.push_back({std::move(target.socket),
                             operation.request,
                             limits_of(operation),
                             [&] { return finder.proc().is_stopped(target.process); },
                             {},
                             [&] { return finder.connect(target.process); }});
        if (locker) questions.back().deep_steps = locker->steps(target.process, sleep->timeout);
    }
    const bool goes_together = is_joint(operation);
    peers::Observer observer;
    observer.progress = [&](std::size_t index, const model::Progress& progress) {
        bar.show(index, progress);
    };
    std::map<std::size_t, Answer> told;
    observer.answered = [&](std::size_t index, const Answer& answer) {
        bar.end(index);
        if (goes_together || is_lost(answer)) return;
        const auto& process = targets[index].process;
        const auto& said = told.emplace(index, with_holders(operation, process, answer)).first->second;
        teller.tell(outcome_of(operation, process, said));
    };
    observer.past_return = [&](std::size_t index) {
        bar.wipe();
        teller.tell_past_return(targets[index].process);
    };
    observer.interruptions = interruptions.fd();
    observer.take_interruption = [&] { interruptions.take(); };
    if (goes_together)
        return peers::ask_together(std::move(questions), joint_of(operation, targets, finder), observer);
    auto answers = peers::ask_all(std::move(questions), observer);
    for (auto& [index, answer] : told) answers[index] = std::move(answer);
    return answers;
}

std::vector<Outcome> ask(const CommandRun& operation, Targets found, Teller& teller,
                         Interruptions& interruptions) {
    if (is_joint(operation) && !found.unreached.empty()) {
        auto outcomes = refuse_all(std::move(found), asked_by(operation));
        for (const auto& outcome : outcomes) teller.tell(outcome);
        return outcomes;
    }
    std::vector<Outcome> unreached;
    for (auto& outcome : found.unreached) {
        unreached.push_back(outcome_of(operation, std::move(outcome.process), std::move(outcome.answer)));
        teller.tell(unreached.back());
    }
    auto& targets = found.reached;
    Finder finder; // sockets may be made again
    auto answers = follow_all(operation, targets, finder, teller, interruptions);
    std::vector<Outcome> outcomes;
    std::vector<std::size_t> lost;
    for (std::size_t i = 0; i < targets.size(); ++i) {
        if (is_lost(answers[i])) lost.push_back(i);
        outcomes.push_back(outcome_of(operation, std::move(targets[i].process), std::move(answers[i])));
    }
    ask_again(finder, outcomes);
    if (is_joint(operation))
        for (const auto& outcome : outcomes) teller.tell(outcome);
    else
        for (const auto i : lost) teller.tell(outcomes[i]);
    std::move(unreached.begin(), unreached.end(), std::back_inserter(outcomes));
    return outcomes;
}

/// The error of tags that none of the processes has, so that somebody may have mistyped one; nothing if there
/// is none.
std::optional<Error> error_of_tags(const std::vector<Outcome>& outcomes) {
    std::optional<Error> found;
    std::size_t count = 0;
    for (const auto& outcome : outcomes) {
        const auto* const error = peers::error_of(outcome.answer);
        if (error && is_gone(error->code)) continue;
        if (!error || error->code != ErrorCode::unknown_tag) return std::nullopt;
        if (++count > 1) continue;
        found = *error;
        found->message = fmt::format("{}: {}", title(outcome.process), error->message);
    }
    if (count > 1)
        found->message = fmt::format("none of {} processes has all of these tags; {}", count, found->message);
    return found;
}

bool is_withdrawn(const Outcome& outcome) noexcept {
    const auto* const error = peers::error_of(outcome.answer);
    return error && error->code == ErrorCode::cancelled;
}

/// Tells what is left to tell once all is done. Returns the exit status.
int end(const CommandRun& operation, Teller& teller, const std::vector<Outcome>& outcomes,
        Interruptions& interruptions) {
    teller.tell_end(outcomes);
    if (operation.output.json) teller.print(to_json(operation.program, outcomes) + '\n');
    if (std::any_of(outcomes.begin(), outcomes.end(), is_withdrawn)) interruptions.end_by_first();
    return end_beside_driver(exit_status_of(outcomes));
}

/// Whether it is a wake of tags, which the driver knows nothing of.
bool wakes_tags(const CommandRun& operation) {
    const auto* const wake = std::get_if<model::WakeRequest>(&operation.request);
    return wake && (!wake->tags.empty() || !wake->order.empty());
}

Error has_agent(const Process& process) {
    return make_error(ErrorCode::invalid_argument,
                      "process {} has an agent, which puts it to sleep: leave out --engine driver",
                      title(process));
}

/// The process that `word` names and the driver is to be asked about, because it has no agent. `found` is
/// what looking for agents came to, if there was a look. Errors: why the driver is not asked.
Result<Process> choose_driver(const CommandRun& operation, const std::string& word, Finder& finder,
                              const Result<Targets>& found) {
    auto process = find_process_without_agent(finder, word, operation.user);
    if (!process && process.error().code == ErrorCode::no_process && operation.engine == Engine::driver &&
        !model::is_number(word)) {
        const auto others = find_targets(finder, word, {.user = operation.user, .takes_several = true});
        if (others && !others->reached.empty()) return has_agent(others->reached.front().process);
    }
    if (!process) return process;
    if (operation.engine == Engine::driver) {
        auto socket = finder.connect(*process);
        if (!socket && socket.error().code == ErrorCode::no_agent) return process;
        if (!socket && socket.error().code != ErrorCode::agent_unreachable) return std::move(socket).error();
        return has_agent(*process);
    }
    if (operation.engine == Engine::automatic) return process;
    if (!is_sleep(operation)) {
        const auto state = state_by_driver(*process);
        if (!state) return state.error().code == ErrorCode::stopped ? state.error() : found.error();
        if (wakes_tags(operation))
            return make_error(ErrorCode::invalid_argument,
                              "process {} has no agent: the driver wakes all of it, and --tags and --order "
                              "are for those that have one",
                              title(*process));
        if (std::get<model::WakeRequest>(operation.request).make_room)
            return make_error(ErrorCode::invalid_argument,
                              "process {} has no agent, and --make-room is for those that have one",
                              title(*process));
        if (*state == driver::CheckpointState::running && !operation.moves.empty())
            return make_error(ErrorCode::invalid_argument,
                              "process {} is awake: put it to sleep by gpu-sleep --engine driver, and then "
                              "wake it on another GPU",
                              title(*process));
        return process;
    }
    auto error = found.error();
    error.message += fmt::format(
        "; or have the driver put it to sleep, slowly and as a whole: gpu-sleep {} --engine driver",
        process->pid);
    return error;
}

DriverRequest driver_request(const CommandRun& operation) {
    if (const auto* sleep = std::get_if<model::SleepRequest>(&operation.request))
        return {model::Operation::sleep, sleep->dry_run, sleep->timeout, {}, false};
    const auto& wake = std::get<model::WakeRequest>(operation.request);
    return {model::Operation::wake, wake.dry_run, wake.timeout, wake.wait, operation.force, operation.moves};
}

} // namespace

void ask_again(Finder& finder, std::vector<Outcome>& outcomes) {
    constexpr Milliseconds k_patience{2'000};
    std::vector<Target> targets;
    std::vector<Outcome*> asked;
    for (auto& outcome : outcomes) {
        if (!is_lost(outcome.answer)) continue;
        if (!finder.proc().is_running(outcome.process)) {
            outcome.answer = make_error(ErrorCode::no_process, "the process has ended meanwhile");
            continue;
        }
        auto socket = finder.connect(outcome.process);
        if (!socket && is_gone(socket.error().code)) {
            outcome.answer = std::move(socket).error();
            continue;
        }
        // What an agent says while it is still at work is how all was before.
        const bool is_unknown = std::get<Error>(outcome.answer).code == ErrorCode::outcome_unknown;
        if (!socket || is_unknown || finder.proc().is_stopped(outcome.process)) continue;
        targets.push_back({outcome.process, *std::move(socket)});
        asked.push_back(&outcome);
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

namespace {

/// Has the request name the GPUs that the only one of `targets` comes back to. Returns that one, asked
/// nothing yet. Errors: invalid_argument (there are several, or plan_gpu_moves() refuses), those of
/// look_at_gpus() and Finder::connect(), and what the process answers.
Result<Targets> plan_moves(CommandRun& operation, Finder& finder, Targets targets) {
    constexpr Milliseconds k_patience{5'000};
    const auto asked = ask_status(finder, std::move(targets), k_patience);
    if (asked.size() != 1)
        return make_error(ErrorCode::invalid_argument, "--gpu is for one process, and these are {}",
                          asked.size());
    const auto& process = asked.front().process;
    if (const auto* const error = peers::error_of(asked.front().answer)) return *error;
    const auto gpus = driver::look_at_gpus();
    if (!gpus)
        return make_error(gpus.error().code, "cannot find out which GPUs there are ({})",
                          gpus.error().message);
    std::vector<GpuNeed> needs;
    for (const auto& device : std::get<model::Report>(asked.front().answer).devices)
        if (!device.uuid.empty()) needs.push_back({device.uuid, 0}); // it looks for room itself
    if (needs.empty())
        return make_error(ErrorCode::invalid_argument, "--gpu: it is not known which GPU process {} was on",
                          title(process));
    auto pairs = plan_gpu_moves(operation.moves, *gpus, needs);
    if (!pairs) return std::move(pairs).error();
    std::get<model::WakeRequest>(operation.request).gpus = *std::move(pairs);
    auto socket = finder.connect(process);
    if (!socket) return std::move(socket).error();
    Targets only;
    only.reached.push_back({process, *std::move(socket)});
    return only;
}

/// Whether it may drop contents.
bool drops(const model::SleepRequest& request) noexcept {
    return !request.dry_run && (request.level == model::Level::drop || !request.discard.empty());
}

/// Whom a command is for.
struct Selected {
    Targets targets;
    std::vector<Process> without_agent; ///< whom the driver is asked about
};

/// Errors: those of find_each() and the like.
Result<Selected> select(const CommandRun& operation, Finder& finder) {
    const Search search{.user = operation.user, .takes_several = operation.takes_several};
    const auto alone = [](Result<Targets> found) -> Result<Selected> {
        if (!found) return std::move(found).error();
        return Selected{*std::move(found), {}};
    };
    if (!operation.selection.group.empty())
        return alone(find_group(finder, operation.selection.group, search));
    if (operation.selection.tree) return alone(find_tree(finder, operation.targets.front(), search));
    if (operation.targets.empty()) return alone(find_all(finder, operation.user));
    Selected selected;
    std::set<pid_t> without_agent;
    for (const auto& word : operation.targets) {
        Result<Targets> found = Targets{};
        if (operation.engine != Engine::driver) found = find_targets(finder, word, search);
        if (operation.engine == Engine::driver || (!found && found.error().code == ErrorCode::no_agent)) {
            auto process = choose_driver(operation, word, finder, found);
            if (process) {
                if (without_agent.insert(process->pid).second)
                    selected.without_agent.push_back(*std::move(process));
                continue;
            }
            found = std::move(process).error();
        }
        GPU_SLEEP_TRY(add_found(finder, operation.targets, word, std::move(found), selected.targets));
    }
    if (operation.targets.size() > 1) connect_again(finder, selected.targets);
    return selected;
}

/// Has the driver do it, one process after another, and tells of each. An interruption is for the rest, too.
void run_by_driver(const CommandRun& operation, std::vector<Process> processes, Teller& teller,
                   Interruptions& interruptions, std::vector<Outcome>& outcomes) {
    bool is_over = false;
    for (auto& process : processes) {
        outcomes.push_back(is_over ? outcome_of(operation, std::move(process),
                                                make_error(ErrorCode::cancelled, "it was not started"))
                                   : run_by_driver(process, driver_request(operation), interruptions));
        teller.tell(outcomes.back());
        is_over = is_over || is_withdrawn(outcomes.back());
    }
}

} // namespace

int run(CommandRun operation) {
    raise_descriptor_limit();
    Teller teller(operation);
    Finder finder;
    auto selected = select(operation, finder);
    if (!selected) return tell_failure(operation.program, operation.output, selected.error());
    if (!operation.moves.empty() && !selected->targets.reached.empty()) {
        auto planned = plan_moves(operation, finder, std::move(selected->targets));
        if (!planned) return tell_failure(operation.program, operation.output, planned.error());
        selected->targets = *std::move(planned);
    }
    if (const auto* const sleep = std::get_if<model::SleepRequest>(&operation.request);
        sleep && drops(*sleep) && !operation.accepts_losses) {
        const auto losses = losses_of(*sleep, finder, selected->targets.reached);
        if (!losses.empty() && !accepts(operation.program, losses, operation.output.quiet))
            return exit_status::failed_awake;
        // An agent waits for a request less long than a person thinks.
        if (!losses.empty()) selected = select(operation, finder);
        if (!selected) return tell_failure(operation.program, operation.output, selected.error());
    }
    Interruptions interruptions;
    auto outcomes = ask(operation, std::move(selected->targets), teller, interruptions);
    const auto* const sleep = std::get_if<model::SleepRequest>(&operation.request);
    const bool is_scheduled = sleep && sleep->only_if_idle; // it may find nothing each time
    if (const auto error = error_of_tags(outcomes);
        error && operation.targets.empty() && !is_joint(operation) && !is_scheduled)
        return tell_failure(operation.program, operation.output, *error);
    std::erase_if(outcomes, [&](const Outcome& each) { return is_passed_over(operation, each); });
    run_by_driver(operation, std::move(selected->without_agent), teller, interruptions, outcomes);
    if (operation.selection.is_joint()) teller.tell_sum(outcomes);
    return end(operation, teller, outcomes, interruptions);
}

} // namespace gpu_sleep::cli
