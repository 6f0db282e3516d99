// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the policies are, for people and as JSON.

#include "cli/json_value.hpp"
#include "cli/output.hpp"
#include "cli/policy/look.hpp"
#include "cli/policy/pass.hpp"
#include "cli/render.hpp"

#include <nlohmann/json.hpp>

#include <utility>
#include <vector>

namespace gpu_sleep::cli::policy {
namespace {

using Json = OrderedJson;

std::string words_for(const Policy& policy, const std::string& user) {
    auto text = to_text(policy.ladder);
    if (!policy.directory.empty()) text += fmt::format("; files in {}", policy.directory);
    if (policy.spill) text += "; spills";
    if (policy.min_awake)
        text += fmt::format("; awake for at least {}", format_seconds(seconds_of(*policy.min_awake)));
    if (policy.host_budget)
        text += fmt::format("; {} of host memory for all of {}'s", format_bytes(*policy.host_budget), user);
    for (const auto& [tag, settings] : policy.tags) {
        if (settings.exempt.value_or(false))
            text += fmt::format("; tag {} is exempt", tag);
        else if (settings.store)
            text += fmt::format("; tag {} in {}", tag, model::to_string(*settings.store));
    }
    return text;
}

std::string words_for(const Decision& decision) {
    if (!decision.request) return "nothing now: " + decision.reason;
    return fmt::format("now: to {}{}",
                       decision.request->store == model::Store::file ? "files" : "host memory",
                       decision.request->deep ? ", deep" : "");
}

Json json_of(const Seen& seen) {
    Json rungs = Json::array();
    for (const auto& [idle, depth] : seen.policy.ladder)
        rungs.push_back({{"idle_seconds", seconds_of(idle)}, {"place", to_string(depth)}});
    Json tags = Json::object();
    for (const auto& [name, tag] : seen.policy.tags)
        tags[name] = {{"store", tag.store ? Json(model::to_string(*tag.store)) : Json()},
                      {"exempt", tag.exempt.value_or(false)}};
    const auto& policy = seen.policy;
    return {{"pid", seen.process.pid},
            {"user", user_name(seen.process.uid)},
            {"idle", std::move(rungs)},
            {"min_awake_seconds", policy.min_awake ? Json(seconds_of(*policy.min_awake)) : Json()},
            {"directory", policy.directory},
            {"spill", policy.spill},
            {"user_host_budget_bytes", policy.host_budget ? Json(*policy.host_budget) : Json()},
            {"tags", std::move(tags)},
            {"acts_now", seen.decision.request.has_value()},
            {"reason", seen.decision.reason}};
}

std::string as_json(const PassOptions& options, const Look& look, const Policies& policies,
                    const Budgets& budgets) {
    auto all = document(options.program, exit_status_of(look.failed));
    all["files"] = policies.files();
    all["host_budget_bytes"] = budgets.machine ? Json(*budgets.machine) : Json();
    for (const auto& each : look.seen) all["processes"].push_back(json_of(each));
    return written(all) + '\n';
}

std::string as_text(const Look& look, const Policies& policies, const Budgets& budgets) {
    std::string text;
    for (const auto& file : policies.files()) text += fmt::format("read {}\n", file);
    if (budgets.machine)
        text += fmt::format("{} of host memory for all processes\n", format_bytes(*budgets.machine));
    for (const auto& [process, report, policy, decision] : look.seen) {
        const auto user = user_name(process.uid);
        text += fmt::format("{} of {}: {}\n  {}\n", title(process), user, words_for(policy, user),
                            words_for(decision));
    }
    return text;
}

/// Says of which files and processes nothing is known, and why.
void print_failures(const PassOptions& options, const Look& look, Policies& policies) {
    for (const auto& complaint : policies.take_complaints())
        print_error(fmt::format("{}: {}\n", options.program, complaint));
    for (const auto& each : look.failed) {
        const auto purpose = fmt::format("say what becomes of {}", title(each.process));
        print_error(render_error(options.program, purpose, *peers::error_of(each.answer)));
    }
}

} // namespace

int show_policies(const PassOptions& options) {
    raise_descriptor_limit();
    auto policies = Policies::load(options.sources);
    if (!policies) return usage_error(options.program, policies.error().message, options.output.json);
    Finder finder;
    const auto found = look(finder, *policies, {options.target, options.user});
    if (!found) {
        print_error(render_error(options.program, "", found.error()));
        return traits(found.error().code).exit_status;
    }
    print_failures(options, *found, *policies);
    const auto budgets = policies->budgets(processes_of(*found));
    const auto text = options.output.json ? as_json(options, *found, *policies, budgets)
                                          : as_text(*found, *policies, budgets);
    const int written = print_result(options.program, text);
    const int status = exit_status_of(found->failed);
    return status == exit_status::done ? written : status;
}

std::map<pid_t, std::string> describe_policies(const PassOptions& options) {
    std::map<pid_t, std::string> lines;
    auto policies = Policies::load(options.sources);
    if (!policies) print_error(render_error(options.program, "", policies.error()));
    if (!policies) return lines;
    Finder finder;
    const auto found = look(finder, *policies, {options.target, options.user});
    if (!found) return lines; // who asks about the process itself says why
    print_failures(options, *found, *policies);
    for (const auto& [process, report, policy, decision] : found->seen)
        lines[process.pid] = fmt::format("  policy: {}\n  {}\n", words_for(policy, user_name(process.uid)),
                                         words_for(decision));
    return lines;
}

} // namespace gpu_sleep::cli::policy
