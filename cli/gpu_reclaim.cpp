// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-reclaim: puts to sleep what has been idle, or says why not.

#include "cli/asking.hpp"
#include "cli/need.hpp"
#include "cli/operation.hpp"
#include "cli/render.hpp"
#include "cli/sleep_options.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

using namespace gpu_sleep;

namespace {

constexpr const char* k_examples =
    "  gpu-reclaim --idle 15m               what has been idle for 15 minutes sleeps until it is used again\n"
    "  gpu-reclaim --idle 15m --dry-run     what would sleep\n"
    "  gpu-reclaim llama --idle 1m          one of them, and why not if it does not sleep\n"
    "  gpu-reclaim --why llama              when it worked last, what would be freed, what stands against "
    "it\n"
    "  gpu-reclaim --idle 4h --store file --dir /var/tmp/sleep\n"
    "  gpu-reclaim --idle 15m --quiet       for cron: says nothing, but for errors\n"
    "  gpu-reclaim --need 40GiB             until so much is free, the least recently used sleep\n";

constexpr const char* k_statuses =
    "\nExit status: 0 done, or nothing had to be done; else that of the first process that failed:\n"
    "1 failed and awake, 2 wrong usage, 3 no such process or no agent in it, 4 timed out, 5 not permitted,\n"
    "6 damaged, 7 failed and asleep, 8 not enough host memory or disk space, 9 not known how it ended.";

constexpr const char* k_program = "gpu-reclaim";

/// Whether a sleep that was rehearsed would free memory.
bool would_free(const model::Report& report) {
    return std::any_of(report.devices.begin(), report.devices.end(),
                       [](const model::DeviceReport& each) { return each.released > 0; });
}

/// The sleep that is asked about, with time to wait for another operation, or for one who holds sleeps back.
model::SleepRequest rehearsal(model::SleepRequest request, Milliseconds patience) {
    request.dry_run = true;
    request.timeout = patience / 2;
    return request;
}

/// Asks what stands against a sleep, and then what it would free whatever stands against it. Changes nothing.
int explain(const cli::CommandRun& operation) {
    constexpr Milliseconds k_patience{10'000};
    const auto& asked = std::get<model::SleepRequest>(operation.request);
    const auto patience = asked.bounds_all ? asked.timeout : k_patience;
    auto request = rehearsal(asked, patience);
    cli::Finder finder;
    auto verdicts = cli::ask_targets(finder, operation.target, operation.user, request, patience);
    if (!verdicts) return cli::tell_failure(k_program, operation.output, verdicts.error());
    request.only_if_idle.reset();
    request.ignore_inhibitors = true;
    auto outcomes = cli::ask_targets(finder, operation.target, operation.user, request, patience);
    if (!outcomes) return cli::tell_failure(k_program, operation.output, outcomes.error());
    const auto verdict_of = [&](const cli::Process& process) {
        return std::find_if(verdicts->begin(), verdicts->end(),
                            [&](const cli::Outcome& other) { return other.process.pid == process.pid; });
    };
    std::erase_if(*outcomes, [&](const auto& each) { return verdict_of(each.process) == verdicts->end(); });
    std::map<pid_t, std::vector<std::string>> against;
    for (auto& outcome : *outcomes) {
        const auto& verdict = *verdict_of(outcome.process);
        const auto* const said = std::get_if<model::Report>(&verdict.answer);
        auto* const report = std::get_if<model::Report>(&outcome.answer);
        if (!said) outcome = verdict;
        if (!said || !report || would_free(*said)) continue;
        against[outcome.process.pid] = said->notes;
        if (operation.output.json)
            report->notes.insert(report->notes.begin(), said->notes.begin(), said->notes.end());
    }
    return cli::tell_all(k_program, operation.output, *outcomes,
                         [&](const cli::Process& process, const model::Report& report) {
                             return cli::render_reasons(process, report, against[process.pid]);
                         });
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
    std::optional<Bytes> need;
    std::string gpu;
    std::optional<Milliseconds> min_awake;
    bool why = false;
    cli::TypedStores stores;
    cli::add_basics(app, k_examples, k_statuses);
    cli::add_limit(app, "--idle", request.only_if_idle,
                   "Processes whose GPU has had no work for so long, as gpu-ps shows");
    cli::add_size(
        app, "--need", need,
        "Put the least recently used to sleep, no more than needed, until so much of a GPU is free");
    const auto read_gpu = [&gpu](const std::string& name) {
        constexpr std::size_t k_longest = 64;
        constexpr const char* k_letters = "0123456789-ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        gpu = name;
        const bool is_name = !name.empty() && name.size() <= k_longest && name.front() != '-' &&
                             name.find_first_not_of(k_letters) == std::string::npos;
        return is_name ? std::string() : fmt::format("'{}' is no number or UUID of a GPU", name);
    };
    cli::add_value(
        app, "--gpu", "GPU", read_gpu,
        "With --need: which one, by its number or UUID as nvidia-smi has it (default: the only one)");
    cli::add_min_awake(app, min_awake);
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
    auto text = cli::read_stores(stores, request);
    if (why && operation.target.empty()) text = "PID is missing, which --why is for";
    if (!why && !need && !request.only_if_idle) text = "--idle or --need is missing";
    if (!need && (!gpu.empty() || min_awake)) text = "--gpu and --min-awake are for --need";
    if (need && (why || !request.tags.empty())) text = "--why and --tags are not for --need";
    if (!text.empty()) return cli::usage_error(k_program, text, operation.output.json);
    if (need) {
        request.min_awake = min_awake.value_or(model::WakeRequest().min_awake);
        request.bounds_all = timeout.has_value();
        request.timeout = timeout.value_or(request.timeout);
        return cli::run_need(
            {*need, gpu, operation.target, operation.user, std::move(request), operation.output});
    }
    if (!request.only_if_idle) request.only_if_idle = Milliseconds(0);
    request.bounds_all = timeout.has_value();
    request.timeout = timeout.value_or(request.timeout);
    operation.request = std::move(request);
    return why ? explain(operation) : cli::run(operation);
}
