// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Find, ask agents, ask the driver.

#include "control/dispatch.hpp"

#include "control/checkpoint_record.hpp"
#include "control/driver_engine.hpp"
#include "control/tasks.hpp"

#include <sys/random.h>

#include <iterator>

namespace gpu_sleep::control {
namespace {

constexpr Milliseconds k_patience{5'000}; ///< with questions that change nothing

const model::SleepRequest* sleep_of(const Command& command) noexcept {
    return model::sleep_in(command.request);
}

const model::WakeRequest* wake_of(const Command& command) noexcept {
    return std::get_if<model::WakeRequest>(&command.request);
}

/// Whether the processes go together, as one operation: not so where it only looks, or gives back.
bool is_joint(const Command& command) {
    const auto* const sleep = sleep_of(command);
    const auto* const wake = wake_of(command);
    return sleep ? sleep->joint && !sleep->dry_run : wake && wake->joint;
}

/// When all that go together must be ready; max() where only each has its limit.
Clock::time_point end_of(const Command& command) {
    const auto& terms = *model::terms_in(command.request);
    if (!terms.bounds_all) return Clock::time_point::max();
    const auto* const wake = wake_of(command);
    return Clock::now() + terms.timeout + (wake ? wake->wait : Milliseconds(0));
}

Error has_agent(const Process& process) {
    return make_error(ErrorCode::invalid_argument,
                      "process {} has an agent: gpu-sleep without --engine driver puts it to sleep",
                      title(process));
}

/// Why the driver is not to wake the process, which stands so. Errors: invalid_argument.
Result<void> check_wake_by_driver(const Command& command, const Process& process, checkpoint::State state) {
    const auto& wake = *wake_of(command);
    if (!wake.tags.empty())
        return make_error(ErrorCode::invalid_argument,
                          "process {} has no agent: the driver can only wake all of it, without --tags",
                          title(process));
    if (wake.make_room)
        return make_error(ErrorCode::invalid_argument,
                          "process {} has no agent, and its wake cannot put other processes to sleep; if its "
                          "GPU has enough free memory: gpu-wake {}",
                          title(process), process.pid);
    if (state == checkpoint::State::running && !command.moves.empty())
        return make_error(ErrorCode::invalid_argument,
                          "process {} is awake: have the driver put it to sleep, then wake it on another GPU",
                          title(process));
    return {};
}

/// The error of tags that none of the processes has, so that somebody may have mistyped one; nothing if there
/// is none.
std::optional<Error> error_of_tags(const std::vector<Outcome>& outcomes) {
    std::optional<Error> found;
    std::size_t count = 0;
    for (const auto& outcome : outcomes) {
        const auto* const error = client::error_of(outcome.answer);
        if (!error || !is_passed_over(outcome)) return std::nullopt;
        if (error->code != ErrorCode::unknown_tag || ++count > 1) continue;
        found = *error;
        found->message = fmt::format("{}: {}", title(outcome.process), error->message);
    }
    if (count > 1)
        found->message = fmt::format("none of {} processes has all of these tags; {}", count, found->message);
    return found;
}

} // namespace

// ---- Finding

Result<Dispatch> Dispatch::select(Command command, Finder finder) {
    Dispatch dispatch(std::move(command), std::move(finder));
    GPU_SLEEP_TRY(dispatch.find());
    GPU_SLEEP_TRY(dispatch.plan_moves());
    return dispatch;
}

Result<void> Dispatch::find() {
    const auto& whom = command_.whom;
    if (!whom.is_joint() && !whom.words.empty()) {
        for (const auto& word : whom.words) GPU_SLEEP_TRY(find(word));
        if (whom.words.size() > 1) disconnect(targets_);
        return {};
    }
    const Search search{.user = whom.user, .takes_several = whom.takes_several};
    targets_ = GPU_SLEEP_TRY(!whom.group.empty() ? find_group(finder_, whom.group, search)
                             : whom.tree         ? find_tree(finder_, whom.words.front(), search)
                                                 : find_all(finder_, whom.user));
    if (whom.is_for_all()) find_recorded();
    return {};
}

/// A wake of all is also for those that a command has had the driver put to sleep.
void Dispatch::find_recorded() {
    const auto* const wake = wake_of(command_);
    if (!wake || !wake->tags.empty()) return;
    for (const auto pid : recorded_processes()) {
        auto process = find_process(finder_, std::to_string(pid), command_.whom.user);
        if (!process || !has_record(*process) || targets_.contains(*process)) continue;
        const auto state = state_by_driver(*process);
        if (state ? *state != checkpoint::State::running : state.error().code == ErrorCode::stopped)
            without_agent_.push_back(*std::move(process));
    }
}

Result<void> Dispatch::find(const std::string& word) {
    const auto& whom = command_.whom;
    const bool is_by_driver = command_.engine == Engine::driver;
    Result<Targets> found = Targets{};
    if (!is_by_driver)
        found = find_targets(finder_, word, {.user = whom.user, .takes_several = whom.takes_several});
    if (is_by_driver || (!found && found.error().code == ErrorCode::no_agent)) {
        auto process = choose_driver(word, found);
        if (process) {
            const auto is_it = [&](const Process& each) { return each.pid == process->pid; };
            if (std::ranges::none_of(without_agent_, is_it)) without_agent_.push_back(*std::move(process));
            return {};
        }
        found = std::move(process).error();
    }
    return add_found(finder_, whom.words, word, std::move(found), targets_);
}

/// The process that `word` names and the driver is to be asked about, because it has no agent. `found` is
/// what looking for agents came to, if there was a look. Errors: why the driver is not asked.
Result<Process> Dispatch::choose_driver(const std::string& word, const Result<Targets>& found) {
    const auto engine = command_.engine;
    const auto user = command_.whom.user;
    auto process = find_process_without_agent(finder_, word, user);
    if (!process && process.error().code == ErrorCode::no_process && engine == Engine::driver &&
        !model::is_number(word)) {
        const auto others = find_targets(finder_, word, {.user = user, .takes_several = true});
        if (others && !others->reached.empty()) return has_agent(others->reached.front().process);
    }
    if (!process) return process;
    if (engine == Engine::driver) {
        auto socket = finder_.connect(*process);
        if (!socket && socket.error().code == ErrorCode::no_agent) return process;
        if (!socket && socket.error().code != ErrorCode::agent_unreachable) return std::move(socket).error();
        return has_agent(*process);
    }
    if (engine == Engine::automatic) return process;
    const auto state = state_by_driver(*process);
    if (wake_of(command_)) {
        if (!state) return state.error().code == ErrorCode::stopped ? state.error() : found.error();
        GPU_SLEEP_TRY(check_wake_by_driver(command_, *process, *state));
        return process;
    }
    if (finder_.proc().lacks(process->pid, "libcuda.so"))
        return make_error(ErrorCode::no_agent, "process {} does not use the GPU: nothing to free",
                          title(*process));
    auto error = found.error();
    if (!state && state.error().code == ErrorCode::no_process)
        error.message += "; it does not use CUDA yet";
    else if (state && *state == checkpoint::State::checkpointed)
        error.message +=
            fmt::format("; the driver has put it to sleep already: gpu-wake {} wakes it", process->pid);
    else if (state)
        error.message += fmt::format("; the driver can put it to sleep without an agent, slowly and as a "
                                     "whole: gpu-sleep {} --engine driver",
                                     process->pid);
    return error;
}

/// Has the request name the GPUs that the only process with an agent comes back to.
Result<void> Dispatch::plan_moves() {
    if (command_.moves.empty() || targets_.reached.empty()) return {};
    const auto count = targets_.reached.size() + targets_.unreached.size();
    if (count != 1)
        return make_error(ErrorCode::invalid_argument, "only one process can move, but there are {}", count);
    const auto outcome = std::move(ask(model::StatusRequest(), k_patience).front());
    if (const auto* const error = client::error_of(outcome.answer)) return *error;
    const auto gpus = driver::look_at_gpus();
    if (!gpus)
        return make_error(gpus.error().code, "cannot find out which GPUs there are ({})",
                          gpus.error().message);
    client::BytesByGpu needs;
    for (const auto& device : std::get<model::Report>(outcome.answer).devices)
        if (!device.uuid.empty()) needs[device.uuid] = 0; // it looks for room itself
    if (needs.empty())
        return make_error(ErrorCode::invalid_argument, "it is not known which GPU process {} was on",
                          title(outcome.process));
    auto pairs = GPU_SLEEP_TRY(plan_gpu_moves(command_.moves, *gpus, needs));
    std::get<model::WakeRequest>(command_.request).gpus = std::move(pairs);
    return {};
}

// ---- Asking

std::vector<Outcome> Dispatch::ask(const protocol::Request& question, Milliseconds patience) {
    Targets asked; // an agent waits for another request less long than a person thinks
    for (auto& target : targets_.reached) asked.reached.push_back({target.process, std::move(target.socket)});
    return ask_each(finder_, std::move(asked), question, patience);
}

std::vector<Outcome> Dispatch::ask_status(Milliseconds patience) {
    auto outcomes = ask(model::StatusRequest(), patience);
    outcomes.insert(outcomes.end(), targets_.unreached.begin(), targets_.unreached.end());
    return outcomes;
}

std::vector<Loss> Dispatch::losses() {
    const auto* const sleep = sleep_of(command_);
    if (!sleep || sleep->dry_run || (sleep->level != model::Level::drop && sleep->discard.empty())) return {};
    auto rehearsal = command_.request;
    model::sleep_in(rehearsal)->dry_run = true;
    std::vector<Loss> losses;
    for (const auto& outcome : ask(rehearsal, k_patience)) {
        const auto* const report = std::get_if<model::Report>(&outcome.answer);
        if (!report || report->dropped_without_refill.empty()) continue;
        const auto& tags = report->dropped_without_refill;
        Bytes bytes = 0;
        for (const auto& row : report->tags)
            if (std::ranges::find(tags, row.tag) != tags.end()) bytes += row.bytes - row.dropped;
        losses.push_back({outcome.process, bytes, tags});
    }
    return losses;
}

Result<std::vector<Outcome>> Dispatch::carry_out(Listener& listener, Interruptions& interruptions) {
    finder_.forget(); // a person may have been asked meanwhile
    auto outcomes =
        is_joint(command_) ? ask_together(listener, interruptions) : ask_agents(listener, interruptions);
    // It may find nothing each time.
    const bool is_scheduled = std::holds_alternative<model::IdleSleepRequest>(command_.request);
    if (command_.whom.words.empty() && !is_joint(command_) && !is_scheduled)
        if (auto error = error_of_tags(outcomes)) return *std::move(error);
    if (command_.whom.is_for_all()) std::erase_if(outcomes, is_passed_over);
    ask_driver(listener, interruptions, outcomes);
    return outcomes;
}

std::vector<Outcome> Dispatch::take_unreached() {
    std::vector<Outcome> outcomes;
    for (auto& each : targets_.unreached)
        outcomes.push_back(
            outcome_of(finder_, command_.request, std::move(each.process), std::move(each.answer)));
    return outcomes;
}

std::vector<Outcome> Dispatch::ask_agents(Listener& listener, Interruptions& interruptions) {
    const bool is_for_all = command_.whom.is_for_all();
    auto unreached = take_unreached();
    for (const auto& each : unreached)
        if (!is_for_all || !is_passed_over(each)) listener.ended(each);
    std::vector<Task> tasks;
    for (auto& target : targets_.reached) tasks.push_back({std::move(target), &command_.request});
    Manner manner{.passes_over = is_for_all};
    const bool is_pass = std::holds_alternative<model::IdleSleepRequest>(command_.request);
    if (is_pass && !model::terms_in(command_.request)->bounds_all)
        manner.end = Clock::now() + k_limit_of_pass;
    auto outcomes = control::carry_out(finder_, std::move(tasks), manner, listener, interruptions);
    std::move(unreached.begin(), unreached.end(), std::back_inserter(outcomes));
    return outcomes;
}

std::vector<Outcome> Dispatch::ask_together(Listener& listener, Interruptions& interruptions) {
    if (!targets_.unreached.empty()) {
        auto outcomes = take_unreached();
        for (auto& target : targets_.reached)
            outcomes.push_back(outcome_of(
                finder_, command_.request, std::move(target.process),
                make_error(ErrorCode::cancelled, "unchanged, as another process cannot be reached")));
        for (const auto& outcome : outcomes) listener.ended(outcome);
        return outcomes;
    }
    std::vector<Process> members;
    std::vector<Task> tasks;
    auto* const wake = std::get_if<model::WakeRequest>(&command_.request);
    for (auto& target : targets_.reached) {
        members.push_back(target.process);
        if (wake) wake->members.push_back(static_cast<std::uint64_t>(target.process.inner_pid));
        tasks.push_back({std::move(target), &command_.request});
    }
    std::uint64_t party = 0;
    while (party == 0)
        if (::getrandom(&party, sizeof party, 0) != sizeof party)
            party = static_cast<std::uint64_t>(::getpid());
    if (auto* const sleep = model::sleep_in(command_.request)) sleep->party = party;
    if (wake) wake->party = party;
    const client::Joint joint{sleep_of(command_) != nullptr, end_of(command_),
                              [&] { return check_members(members); }};
    return control::carry_out(finder_, std::move(tasks), {.joint = &joint}, listener, interruptions);
}

/// A last look at those that go together, before any passes the point of no return. Errors: cancelled: there
/// is one more by now, or one could not go on.
Result<void> Dispatch::check_members(const std::vector<Process>& members) const {
    const auto& whom = command_.whom;
    Membership membership{{}, whom.group, whom.user};
    for (const auto& member : members) {
        if (finder_.proc().is_stopped(member))
            return make_error(ErrorCode::cancelled, "process {} is stopped", title(member));
        membership.roots.push_back(member.pid);
    }
    for (const auto& word : whom.words) {
        if (const auto root = find_root(finder_, word, whom.user)) membership.roots.push_back(root->pid);
    }
    const auto newcomer = GPU_SLEEP_TRY(find_newcomer(finder_, membership, members));
    if (!newcomer.has_value()) return {};
    return make_error(
        ErrorCode::cancelled,
        "process {} is in the tree or group, and has started to use the GPU in the meantime; try again",
        title(*newcomer));
}

/// One process after another. An interruption is for the rest, too.
void Dispatch::ask_driver(Listener& listener, Interruptions& interruptions, std::vector<Outcome>& outcomes) {
    bool is_over = false;
    for (auto& process : without_agent_) {
        auto answer = is_over ? make_error(ErrorCode::cancelled, "it was not started")
                              : run_by_driver(process, command_, interruptions);
        outcomes.push_back(outcome_of(finder_, command_.request, std::move(process), std::move(answer)));
        outcomes.back().by_driver = !is_over;
        listener.ended(outcomes.back());
        is_over = is_over || is_withdrawn(outcomes.back());
    }
}

} // namespace gpu_sleep::control
