// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-reclaim: puts to sleep what has been idle, or says why not.

#include "cli/json.hpp"
#include "cli/operation.hpp"
#include "cli/output.hpp"
#include "cli/policy/pass.hpp"
#include "cli/policy/policy_options.hpp"
#include "cli/render.hpp"
#include "cli/sleep_options.hpp"

#include <algorithm>
#include <iterator>

using namespace gpu_sleep;

namespace {

constexpr const char* k_examples =
    "  gpu-reclaim --idle 15m               what has been idle for 15 minutes sleeps until it is used again\n"
    "  gpu-reclaim                          as /etc/gpu-sleep.toml and ~/.config/gpu-sleep.toml say\n"
    "  gpu-reclaim --show-config            what they say of each process, and what would be done now\n"
    "  gpu-reclaim --idle 15m:host --idle 4h:file --dir /var/tmp/sleep      further down what stays idle\n"
    "  gpu-reclaim --idle 15m --dry-run     what would sleep\n"
    "  gpu-reclaim llama --idle 1m          one of them, and why not if it does not sleep\n"
    "  gpu-reclaim --why llama              when it worked last, what would be freed, what stands against "
    "it\n"
    "  gpu-reclaim --idle 15m --quiet       for cron: says nothing, but for errors\n";

constexpr const char* k_statuses =
    "\nExit status: 0 done, or nothing had to be done; else that of the first process that failed:\n"
    "1 failed and awake, 2 wrong usage, 3 no such process or no agent in it, 4 timed out, 5 not permitted,\n"
    "6 damaged, 7 failed and asleep, 8 not enough host memory or disk space, 9 not known how it ended.";

constexpr const char* k_program = "gpu-reclaim";

/// What is told of a process.
struct Explained {
    cli::Outcome outcome; ///< of a sleep that nothing stands against, had it been no dry run
    std::vector<std::string> against;
};

/// Tells why, for each process, once all have answered.
int tell(const cli::CommandRun& operation, std::vector<Explained> all) {
    std::string text;
    std::vector<cli::Outcome> outcomes;
    for (auto& [outcome, against] : all) {
        const auto* failure = std::get_if<model::Failure>(&outcome.answer);
        const auto* error = failure ? &failure->error : std::get_if<Error>(&outcome.answer);
        const auto subject = cli::title(outcome.process);
        if (error)
            cli::print_error(cli::render_error(k_program, "ask " + subject, cli::without(subject, *error)));
        else if (!operation.output.quiet)
            text += cli::render_reasons(outcome.process, std::get<model::Report>(outcome.answer), against);
        if (auto* const report = std::get_if<model::Report>(&outcome.answer))
            report->notes.insert(report->notes.begin(), against.begin(), against.end());
        outcomes.push_back(std::move(outcome));
    }
    if (operation.output.json) text = cli::to_json(k_program, outcomes) + '\n';
    const int written = cli::print_result(k_program, text);
    const int status = cli::exit_status_of(outcomes);
    return status == exit_status::done ? written : status;
}

/// Puts together what stands against a sleep, which is in `verdict`, and what it would free.
Explained put_together(cli::Outcome outcome, const cli::Outcome& verdict) {
    const auto* const said = std::get_if<model::Report>(&verdict.answer);
    if (!said) return {verdict, {}};
    const bool would_sleep = std::any_of(said->devices.begin(), said->devices.end(),
                                         [](const model::DeviceReport& each) { return each.released > 0; });
    return {std::move(outcome), would_sleep ? std::vector<std::string>() : said->notes};
}

/// Asks what stands against a sleep, and then what it would free whatever stands against it. Changes nothing.
int explain(const cli::CommandRun& operation) {
    constexpr Milliseconds k_patience{10'000};
    auto request = std::get<model::SleepRequest>(operation.request);
    const auto patience = request.bounds_all ? request.timeout : k_patience;
    request.dry_run = true;
    request.timeout = patience / 2; // to wait for another operation, or for one who holds sleeps back
    cli::Finder finder;
    std::vector<cli::Outcome> outcomes[2];
    for (auto& answers : outcomes) {
        auto targets = cli::find_targets(finder, operation.target, {.user = operation.user});
        if (!targets) {
            cli::print_error(cli::render_error(k_program, "", targets.error()));
            const auto text =
                operation.output.json ? cli::to_json(k_program, targets.error()) + '\n' : std::string();
            [[maybe_unused]] const int written = cli::print_result(k_program, text); // it has failed anyway
            return traits(targets.error().code).exit_status;
        }
        answers = cli::ask_each(finder, std::move(targets->reached), request, patience);
        std::move(targets->unreached.begin(), targets->unreached.end(), std::back_inserter(answers));
        request.only_if_idle.reset();
        request.ignore_inhibitors = true;
    }
    auto& [verdicts, reports] = outcomes;
    std::vector<Explained> all;
    for (auto& outcome : reports) {
        const auto is_same = [&](const cli::Outcome& other) {
            return other.process.pid == outcome.process.pid;
        };
        const auto verdict = std::find_if(verdicts.begin(), verdicts.end(), is_same);
        if (verdict != verdicts.end()) all.push_back(put_together(std::move(outcome), *verdict));
    }
    return tell(operation, std::move(all));
}

} // namespace

int main(int argc, char** argv) {
    CLI::App app("Puts to sleep every GPU process that has been idle, until it uses the GPU again: one pass, "
                 "for cron or a timer.",
                 k_program);
    cli::CommandRun operation{k_program, {}, {}, {}, {}};
    model::SleepRequest request;
    request.on_touch = model::OnTouch::wake;
    std::optional<Milliseconds> timeout;
    bool why = false;
    cli::TypedStores stores;
    cli::policy::TypedPolicy typed;
    cli::policy::Sources sources;
    cli::add_basics(app, k_examples, k_statuses);
    cli::policy::add_policy(app, typed);
    cli::add_flag(
        app, "--why", why,
        "Change nothing; say of PID when it worked last, what a sleep would free, what stands against\n"
        "it, and how long waking would take");
    cli::add_target(app, operation.target);
    cli::add_user(app, operation.user);
    cli::add_level(app, request.level);
    cli::add_tags(app, "--tags", request.tags, "Only these tags (default: all)");
    cli::add_stores(app, stores);
    cli::add_flag(app, "--dry-run", request.dry_run,
                  "Change nothing; say what would be freed, kept and dropped");
    cli::add_limit(
        app, "--timeout", timeout,
        "Time limit for each process until GPU memory is released (default: 30 s for the program's\n"
        "callbacks, and no limit for copying that advances)");
    cli::add_output(app, operation.output);
    if (const auto status = cli::parse(app, argc, argv)) return *status;
    auto text = cli::policy::read_policy(typed, sources);
    if (why && operation.target.empty()) text = "PID is missing, which --why is for";
    const bool is_by_policies = !why && !typed.is_plain();
    if (text.empty())
        text = is_by_policies ? read_rest(request, stores, sources) : cli::read_stores(stores, request);
    if (!text.empty()) return cli::usage_error(k_program, text, operation.output.json);
    if (is_by_policies) {
        const cli::policy::PassOptions options{k_program,       operation.target, operation.user,  sources,
                                               request.dry_run, timeout,          operation.output};
        return typed.shows ? show_policies(options) : run_pass(options);
    }
    request.only_if_idle = sources.ladder ? sources.ladder->front().idle : Milliseconds(0);
    request.bounds_all = timeout.has_value();
    request.timeout = timeout.value_or(request.timeout);
    operation.request = std::move(request);
    return why ? explain(operation) : cli::run(operation);
}
