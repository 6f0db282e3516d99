// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Runs a pass, and prints its results and the policies, for people and as JSON.

#include "cli/pass.hpp"

#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/command_run.hpp"
#include "cli/show/json.hpp"
#include "cli/show/output.hpp"
#include "cli/show/render.hpp"
#include "control/history.hpp"
#include "control/listing.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <sstream>

namespace gpu_sleep::cli {

namespace policy = control::policy;

namespace {

constexpr const char* k_program = "gpu-reclaim";

/// Says what came of it. Returns the exit status.
int tell(const PassOptions& options, const policy::Passed& passed) {
    const auto& [outcomes, errors, failure] = passed;
    const bool is_told = !options.output.json && !options.output.quiet; // on standard output, in words
    control::GpuNumbers numbers;
    std::string text;
    int status = exit_status::done;
    for (const auto& outcome : outcomes) {
        print_error(render_failure(k_program, "put {} to sleep", outcome));
        const auto* const report = std::get_if<model::Report>(&outcome.answer);
        if (report && is_told && (does_something(*report) || !options.request.whom.is_for_all()))
            text += render_operation(outcome.process, numbers.in(*report));
        status = worse_of(status, exit_status_of(outcome));
    }
    for (const auto& error : errors) {
        print_error(fmt::format("{}: {}\n", k_program, error.message));
        status = worse_of(status, traits(error.code).exit_status);
    }
    if (failure) {
        print_error(render_error(k_program, "", *failure));
        status = traits(failure->code).exit_status;
    }
    const auto* const error = failure ? &*failure : errors.empty() ? nullptr : &errors.front();
    if (options.output.json) {
        auto value = document_of(k_program, outcomes, status);
        if (error) value["error"] = error_value(k_program, *error);
        text = written(value) + '\n';
    } else if (is_told && text.empty() && status == exit_status::done)
        text = "nothing to do\n";
    else if (is_told)
        text += render_total(outcomes);
    return print_result(k_program, text, status);
}

std::string words_for(const policy::Policy& policy, const std::string& user) {
    auto text = to_text(policy.ladder);
    if (!policy.directory.empty()) text += fmt::format("; files in {}", policy.directory);
    if (policy.spill) text += "; spills";
    if (policy.min_awake)
        text += fmt::format("; awake for at least {}", format_seconds(policy::seconds_of(*policy.min_awake)));
    if (policy.host_budget)
        text += fmt::format("; {} of host memory for {} in all", format_bytes(*policy.host_budget), user);
    for (const auto& [tag, settings] : policy.tags) {
        if (settings.exempt.value_or(false))
            text += fmt::format("; tag {} is exempt", tag);
        else if (settings.store)
            text += fmt::format("; tag {} in {}", tag, model::to_string(*settings.store));
    }
    return text;
}

std::string words_for_place(const model::SleepRequest& sleep) {
    return fmt::format("{}{}", sleep.store == model::Store::file ? "files" : "host memory",
                       sleep.deep ? ", deep" : "");
}

/// Lines about what a pass would do now, and about settings that have no effect.
std::string lines_for(const policy::Decision& decision, const policy::Policy& policy) {
    auto text = "  nothing now: " + decision.reason + '\n';
    if (const auto& request = decision.request)
        text = fmt::format("  now: to {}\n", words_for_place(request->sleep));
    for (const auto& each : policy.grounds.overridden) text += fmt::format("  overridden: {}\n", each);
    return text;
}

OrderedJson json_of(const policy::Seen& seen) {
    OrderedJson rungs = OrderedJson::array();
    for (const auto& [idle, depth] : seen.policy.ladder)
        rungs.push_back({{"idle_seconds", policy::seconds_of(idle)}, {"place", to_string(depth)}});
    OrderedJson tags = OrderedJson::object();
    for (const auto& [name, tag] : seen.policy.tags)
        tags[name] = {{"store", tag.store ? OrderedJson(model::to_string(*tag.store)) : OrderedJson()},
                      {"exempt", tag.exempt.value_or(false)}};
    const auto& policy = seen.policy;
    return {{"pid", seen.process.pid},
            {"user", control::user_name(seen.process.uid)},
            {"idle", std::move(rungs)},
            {"min_awake_seconds",
             policy.min_awake ? OrderedJson(policy::seconds_of(*policy.min_awake)) : OrderedJson()},
            {"directory", policy.directory},
            {"spill", policy.spill},
            {"user_host_budget_bytes", policy.host_budget ? OrderedJson(*policy.host_budget) : OrderedJson()},
            {"tags", std::move(tags)},
            {"overridden", policy.grounds.overridden},
            {"acts_now", seen.decision.request.has_value()},
            {"reason", seen.decision.reason}};
}

std::string as_json(const policy::Look& look, const policy::Policies& policies) {
    auto all = document(k_program, exit_status_of(look.failed));
    all["files"] = policies.files();
    all["host_budget_bytes"] = look.budgets.machine ? OrderedJson(*look.budgets.machine) : OrderedJson();
    for (const auto& each : look.seen) all["processes"].push_back(json_of(each));
    return written(all) + '\n';
}

std::string as_text(const policy::Look& look, const policy::Policies& policies) {
    std::string text;
    for (const auto& file : policies.files()) text += fmt::format("read {}\n", file);
    if (look.budgets.machine)
        text += fmt::format("{} of host memory for all processes\n", format_bytes(*look.budgets.machine));
    for (const auto& [process, report, policy, decision] : look.seen) {
        const auto user = control::user_name(process.uid);
        text += fmt::format("{} of {}: {}\n{}", title(process), user, words_for(policy, user),
                            lines_for(decision, policy));
    }
    return text;
}

/// The answer if there is no process with an agent.
std::string words_for_nobody(const PassOptions& options, const policy::Policies& policies) {
    const auto& sources = options.sources;
    const bool has_rule = sources.ladder || !policies.files().empty();
    const auto user = options.request.whom.user.value_or(::geteuid());
    const bool is_one_users = options.request.whom.user || user != 0;
    return fmt::format(
        "{}no process{} has an agent; gpu-enable(1) says how they get one\n",
        has_rule ? std::string()
                 : fmt::format("no configuration file: processes that are idle for {} sleep in host memory\n",
                               policy::to_text(sources.otherwise.front().idle)),
        is_one_users ? " of " + control::user_name(user) : "");
}

/// Looks, and says what is wrong with files.
Result<policy::Look> look_and_tell(const PassOptions& options, policy::Policies& policies) {
    control::Finder finder;
    const auto patience = options.request.timeout.value_or(policy::k_patience_of_look);
    auto found = look(finder, policies, options.request.whom, patience);
    tell_complaints(policies);
    if (!found) return found;
    heed_room(found->seen, plan_host_memory(holders_of(*found), found->budgets).has_room);
    heed_refusals(finder, found->seen, patience);
    return found;
}

/// Adds those without an agent, whom no policy reaches.
void add_without_agent(std::optional<uid_t> user, policy::Look& look) {
    std::set<pid_t> known;
    for (const auto& each : look.seen) known.insert(each.process.pid);
    for (const auto& each : look.failed) known.insert(each.process.pid);
    for (auto& other : control::find_without_agent(control::Finder(), user, known)) {
        const auto* const error = client::error_of(other.answer);
        auto why = error ? error->message : std::get<model::Report>(other.answer).notes.front();
        look.seen.push_back({std::move(other.process), {}, {}, {{}, std::move(why)}});
    }
}

/// Runs the administrator's program, the very file that was checked, with `word` as its argument and `lines`
/// as its standard input, and waits for its end; after 5 s it is ended, with what it has started. Returns the
/// pids that it has printed, and says in `problem` what went wrong. Input and output are files in memory:
/// neither side waits for the other.
std::set<pid_t> run_notify(const UniqueFd& program, const char* word, std::string_view lines,
                           std::string& problem) {
    constexpr int k_ended_by_timeout = 128 + SIGKILL;
    constexpr int k_descriptor = 3; // a script's interpreter opens it by that number
    constexpr const char* k_path = "/proc/self/fd/3";
    const auto input = opened([&] { return ::memfd_create("list", MFD_CLOEXEC); });
    const auto output = opened([&] { return ::memfd_create("pids", MFD_CLOEXEC); });
    if (::pwrite(input.get(), lines.data(), lines.size(), 0) != static_cast<ssize_t>(lines.size())) {
        problem = "no memory for its input";
        return {};
    }
    posix_spawn_file_actions_t streams;
    ::posix_spawn_file_actions_init(&streams);
    ::posix_spawn_file_actions_adddup2(&streams, input.get(), STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&streams, output.get(), STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&streams, program.get(), k_descriptor);
    const char* const words[] = {"timeout", "-s", "KILL", "5", k_path, word, nullptr};
    pid_t process = 0;
    const int failure =
        ::posix_spawnp(&process, words[0], &streams, nullptr, const_cast<char**>(words), environ);
    ::posix_spawn_file_actions_destroy(&streams);
    int status = 0;
    while (failure == 0 && ::waitpid(process, &status, 0) < 0 && errno == EINTR) {
    }
    const int ended = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (failure != 0)
        problem = errno_error(ErrorCode::io_failed, failure, "start", words[0]).message;
    else if (ended != 0)
        problem = ended == k_ended_by_timeout ? "it was ended after 5 s"
                                              : fmt::format("it ended with status {}", ended);
    ::lseek(output.get(), 0, SEEK_SET);
    std::istringstream said(read_open_file(output.get(), k_mib).value_or(""));
    std::set<pid_t> pids;
    for (std::string each; said >> each;)
        if (const auto pid = parse_number<pid_t>(each)) pids.insert(*pid);
    return pids;
}

/// Has the administrator's program hear of processes, each with what is said of it, if there are any. Returns
/// the pids that it names.
std::set<pid_t> notify(const PassOptions& options, const policy::Policies& policies, const char* word,
                       const std::vector<std::pair<control::Process, std::string>>& told) {
    if (told.empty() || !policies.notify() || options.request.dry_run) return {};
    std::string lines;
    for (const auto& [process, text] : told)
        lines += fmt::format("{}\t{}\t{}\t{}\n", process.pid, printable(control::user_name(process.uid)),
                             printable(control::display_name(process)), text);
    std::string problem;
    auto pids = run_notify(policies.notify(), word, lines, problem);
    if (!problem.empty())
        print_error(fmt::format("{}: {} {}: {}\n", k_program, policies.notify_path(), word, problem));
    return pids;
}

/// The processes that are about to sleep, each with the reason.
auto about_to_sleep(const std::vector<policy::Seen>& seen) {
    std::vector<std::pair<control::Process, std::string>> told;
    for (const auto& [process, report, policy, decision] : seen)
        if (decision.request)
            told.emplace_back(process, fmt::format("unused for {}, to {}",
                                                   format_seconds(policy::unused_seconds(report).value_or(0)),
                                                   words_for_place(decision.request->sleep)));
    return told;
}

/// The processes that the pass put to sleep or moved.
auto slept(const std::vector<control::Outcome>& outcomes) {
    std::vector<std::pair<control::Process, std::string>> told;
    for (const auto& each : outcomes)
        if (const auto* const report = std::get_if<model::Report>(&each.answer); report && report->changed)
            told.emplace_back(
                each.process,
                fmt::format("{}, {} freed", model::to_string(report->state),
                            format_bytes(sum_of(report->devices, &model::DeviceReport::released))));
    return told;
}

/// By the machine's own pass, which root runs for all.
void keep_history(const PassOptions& options, const policy::Passed& passed) {
    const auto& request = options.request;
    const bool is_for_machine = request.whom.is_for_all() && !request.whom.user && !request.dry_run;
    if (::geteuid() != 0 || !is_for_machine || options.sources.config) return;
    std::vector<control::Process> processes;
    for (const auto& outcome : passed.outcomes) processes.push_back(outcome.process);
    if (const auto kept = control::keep_history(control::read_history(processes), control::now_of_history());
        !kept)
        print_error(fmt::format("{}: the history is not kept: {}\n", k_program, kept.error().message));
}

} // namespace

int run_pass(const PassOptions& options) {
    control::raise_descriptor_limit();
    auto policies = load_policies(options.sources);
    if (!policies) return tell_failure(k_program, options.output, policies.error());
    auto request = options.request;
    if (policies->notify())
        request.spare = [&](const auto& seen) {
            return notify(options, *policies, "before", about_to_sleep(seen));
        };
    const auto passed = pass(request, *policies);
    if (passed) static_cast<void>(notify(options, *policies, "after", slept(passed->outcomes)));
    if (passed) keep_history(options, *passed);
    tell_complaints(*policies);
    if (passed) return end_beside_driver(tell(options, *passed));
    return tell_failure(k_program, options.output, passed.error());
}

void tell_complaints(policy::Policies& policies) {
    for (const auto& complaint : policies.take_complaints())
        print_error(fmt::format("{}: {}\n", k_program, complaint));
}

Result<policy::Policies> load_policies(const policy::Sources& sources) {
    policy::Policies policies;
    auto loaded = policies.load(sources);
    tell_complaints(policies);
    if (loaded) return policies;
    const auto& message = loaded.error().message;
    const bool is_named = sources.config && message.starts_with(sources.config->native());
    const bool is_contents = loaded.error().code == ErrorCode::invalid_argument;
    return make_error(ErrorCode::invalid_argument, "{}{}{}", is_named ? "--config: " : "", message,
                      is_contents ? "; see man gpu-sleep.toml"
                      : is_named  ? fmt::format("; see {} --help", k_program)
                                  : std::string());
}

int show_policies(const PassOptions& options) {
    control::raise_descriptor_limit();
    auto policies = load_policies(options.sources);
    if (!policies) return tell_failure(k_program, options.output, policies.error());
    auto found = look_and_tell(options, *policies);
    if (!found) return tell_failure(k_program, {}, found.error());
    for (const auto& each : found->failed)
        print_error(render_failure(k_program, "find out whether {} would sleep", each));
    const auto& whom = options.request.whom;
    const bool has_agents = !found->seen.empty() || !found->failed.empty();
    if (whom.is_for_all()) {
        add_without_agent(whom.user, *found);
        for (const auto& each : found->seen)
            if (each.report.name.empty()) static_cast<void>(policies->of(each.process, each.process.name));
        policies->complain_of_unused();
        tell_complaints(*policies);
    }
    auto text = options.output.json ? as_json(*found, *policies) : as_text(*found, *policies);
    if (!options.output.json && !has_agents) text += words_for_nobody(options, *policies);
    return print_result(k_program, text, exit_status_of(found->failed));
}

Result<std::map<pid_t, std::string>> describe_policies(const PassOptions& options) {
    auto policies = GPU_SLEEP_TRY(load_policies(options.sources));
    std::map<pid_t, std::string> lines;
    const auto found = look_and_tell(options, policies);
    if (!found) return lines; // the caller asks each process as well, and says what fails
    for (const auto& [process, report, policy, decision] : found->seen)
        lines[process.pid] =
            fmt::format("  policy: {}\n{}", words_for(policy, control::user_name(process.uid)),
                        lines_for(decision, policy));
    return lines;
}

} // namespace gpu_sleep::cli
