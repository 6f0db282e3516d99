// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-reclaim: puts to sleep what has been idle, or says why not.

#include "cli/command_run.hpp"
#include "cli/need.hpp"
#include "cli/options.hpp"
#include "cli/output.hpp"
#include "cli/pass.hpp"
#include "cli/render.hpp"
#include "control/listing.hpp"
#include "control/policy/decision.hpp"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace gpu_sleep;

namespace {

namespace policy = control::policy;
namespace usage = cli::usage;

constexpr const char* k_examples =
    "  gpu-reclaim                 as gpu-sleep.toml says, or after 15 minutes\n"
    "  gpu-reclaim --idle 1h       processes idle for an hour sleep until used\n"
    "  gpu-reclaim --need 40GiB    free this much, least recently used first\n"
    "  gpu-reclaim --why llama     why it sleeps, or why not\n";

constexpr const char* k_program = "gpu-reclaim";

/// Says what prevents a sleep, and what it would free if nothing did. `policies`: what else to say of each.
int explain(const control::Selection& whom, const model::IdleSleepRequest& request,
            const cli::OutputOptions& output, std::map<pid_t, std::string> policies) {
    constexpr Milliseconds k_patience{10'000};
    const auto outcomes = control::rehearse(whom.words.front(), whom.user, request,
                                            request.sleep.bounds_all ? request.sleep.timeout : k_patience);
    if (!outcomes) return cli::tell_failure(k_program, output, outcomes.error());
    return cli::tell_all(k_program, output, *outcomes,
                         [&](const control::Process& process, const model::Report& report) {
                             return cli::render_reasons(process, report) + policies[process.pid];
                         });
}

/// What was typed of policies.
struct TypedPolicy {
    std::vector<std::string> idle;
    std::string config;
    std::optional<Milliseconds> otherwise;
    std::optional<Bytes> host_budget;

    /// Whether it is one time for all processes, which needs no policies.
    [[nodiscard]] bool is_plain() const {
        return idle.size() == 1 && idle.front().find(':') == std::string::npos && !host_budget;
    }
};

/// What was typed.
struct Typed {
    std::string target;
    std::optional<uid_t> user;
    model::SleepRequest request;
    std::optional<Milliseconds> timeout;
    bool why = false;
    std::optional<Bytes> need;
    std::string gpu;
    std::optional<Milliseconds> min_awake;
    std::optional<Milliseconds> wait;
    bool shows_policies = false; ///< the former --show-config
    cli::TypedStores stores;
    TypedPolicy policy;
    cli::OutputOptions output;

    /// Whether it is about all policies, and no process.
    [[nodiscard]] bool is_about_policies() const { return shows_policies || (why && target.empty()); }
    /// Whether policies decide for each process, and not one time for all.
    [[nodiscard]] bool is_by_policies() const {
        return is_about_policies() || (!why && !need && !policy.is_plain());
    }
};

/// --idle, --config, and the former --default-idle and --host-budget.
usage::Group policy_rows(TypedPolicy& typed) {
    return {"When processes sleep",
            {usage::brief({"--idle", usage::list("DURATION", typed.idle, '\0'),
                           "Put processes to sleep that have had no GPU work for this long"}),
             {"--config", usage::path("FILE", typed.config),
              "The administrator's configuration, in place of /etc/gpu-sleep.toml"},
             usage::old({"--default-idle", usage::duration(typed.otherwise), {}}),
             usage::old({"--host-budget", usage::size(typed.host_budget), {}})}};
}

usage::Table table_of(Typed& typed) {
    auto& request = typed.request;
    const auto read_gpu = [&typed](const std::string& name) {
        constexpr std::size_t k_longest = 64;
        constexpr const char* k_letters = "0123456789-ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        typed.gpu = name;
        const bool is_name = !name.empty() && name.size() <= k_longest && name.front() != '-' &&
                             name.find_first_not_of(k_letters) == std::string::npos;
        return is_name ? std::string() : fmt::format("'{}' is not the number or UUID of a GPU", name);
    };
    return {
        k_program,
        "Puts idle GPU processes to sleep until they are used again; for cron or a timer.",
        {"[OPTION]... [PID]", "--need SIZE [OPTION]... [PID]", "--why [OPTION]... [PID]"},
        {policy_rows(typed.policy),
         {"Room on a GPU",
          {usage::brief({"--need", usage::size(typed.need),
                         "Put processes to sleep until this much memory of one GPU is free"}),
           {"--gpu", usage::text("GPU", read_gpu),
            "With --need: which GPU, by its number or UUID in nvidia-smi (default: the only GPU)"},
           cli::wait_row(typed.wait, "0 s"),
           usage::old(cli::min_awake_row(typed.min_awake, "--need"))}},
         {"Which processes", {cli::target_row(typed.target), cli::user_row(typed.user)}},
         {"How they go to sleep",
          {usage::brief(cli::dry_run_row(request.dry_run)),
           usage::brief(
               {"--why", usage::flag(typed.why),
                "Explain when PID would sleep, and what prevents it; without PID, for every process"}),
           usage::old({"--show-config", usage::flag(typed.shows_policies), {}}),
           usage::old(cli::level_row(request.level, false)),
           usage::old({"--tags", cli::tags(request.tags), {}}),
           usage::old(cli::store_row(typed.stores)),
           usage::old(cli::dir_row(typed.stores)),
           {"--timeout", usage::duration(typed.timeout),
            "Give up on a process if its GPU memory is not released within this time (default: 30 s, "
            "without copying)"}}},
         {"Output", {cli::json_row(typed.output.json), usage::brief(cli::quiet_row(typed.output.quiet))}}},
        k_examples,
        fmt::format("with --need, 1 if there is no room; otherwise the worst of these, over all processes "
                    "(nothing to do counts as 0): {}",
                    cli::k_exit_statuses),
        {},
        {{"--wait", "--need"}}};
}

/// What is wrong with options that are good one by one, or nothing.
std::string problem(const Typed& typed) {
    if (!typed.need && (!typed.gpu.empty() || typed.min_awake))
        return "--gpu and --min-awake can be used only with --need";
    const auto& policy = typed.policy;
    const bool has_ladder = !policy.idle.empty() && !policy.is_plain();
    if (typed.need && (typed.why || typed.shows_policies || !typed.request.tags.empty() || has_ladder ||
                       policy.host_budget || policy.otherwise))
        return "--why, --tags, --default-idle, --host-budget, --show-config and --idle with a place are not "
               "allowed with --need";
    return {};
}

/// Puts what was typed into `sources`. Returns what is wrong with it, or nothing.
std::string read_policy(const TypedPolicy& typed, policy::Sources& sources) {
    std::vector<policy::Rung> rungs;
    for (const auto& text : typed.idle) {
        const auto rung = policy::parse_rung(text);
        if (!rung) return "--idle: " + rung.error().message;
        rungs.push_back(*rung);
        if (const auto warning = unit_warning(text); !warning.empty())
            cli::print_error(fmt::format("gpu-reclaim: --idle: {}\n", warning));
    }
    auto ladder = make_ladder(std::move(rungs));
    if (!ladder) return "--idle: " + ladder.error().message;
    if (!ladder->empty()) sources.ladder = *std::move(ladder);
    sources.host_budget = typed.host_budget;
    const bool is_typed = sources.ladder || sources.host_budget;
    if (is_typed && !typed.config.empty()) return "--config has no effect with --idle or --host-budget";
    if (is_typed && typed.otherwise) return "--default-idle has no effect with --idle or --host-budget";
    if (!typed.config.empty()) sources.config = typed.config;
    if (typed.otherwise) sources.otherwise = {{*typed.otherwise, policy::Depth::host}};
    return {};
}

/// Puts what was typed of a directory into `sources`. Returns which option is for a plain time alone, or
/// nothing.
std::string read_rest(const model::SleepRequest& request, const cli::TypedStores& stores,
                      policy::Sources& sources) {
    if (!request.tags.empty()) return "--tags is only for --idle DURATION";
    if (request.level != model::Level::keep) return "--level is for --idle DURATION and --need";
    if (!stores.stores.empty()) return "--store is only for --idle DURATION";
    if (stores.directory.empty()) return {};
    if (!sources.ladder && !sources.host_budget)
        return "--dir is for --idle and --need; set directory in the configuration";
    std::error_code failure;
    sources.directory = std::filesystem::absolute(stores.directory, failure).lexically_normal();
    if (!failure) return {};
    return fmt::format("the directory '{}' is relative to a working directory that is gone",
                       stores.directory);
}

/// Room on a GPU, by sleeps that heed the policy of each process.
int make_room(const Typed& typed, const policy::Sources& sources) {
    auto policies = cli::load_policies(k_program, sources);
    if (!policies) return cli::tell_failure(k_program, typed.output, policies.error());
    control::Need need{*typed.need, typed.gpu, typed.target, typed.user, typed.request};
    need.until = Clock::now() + typed.wait.value_or(Milliseconds(0));
    if (sources.ladder) need.only_if_idle = sources.ladder->front().idle;
    need.adapt = [&](const control::Process& process, const model::Report& report, auto& request) {
        heed(policies->of(process, report.name), report, request);
        if (!request.min_awake) request.min_awake = model::WakeRequest().min_awake;
    };
    const int status = cli::run_need(need, typed.output);
    cli::tell_complaints(k_program, *policies);
    return status;
}

int run(Typed typed, policy::Sources sources) {
    auto& request = typed.request;
    const bool is_one_time = sources.ladder.has_value();
    control::Selection whom{.user = typed.user};
    if (!typed.target.empty()) whom.words.push_back(typed.target);
    const cli::PassOptions options{
        k_program, {std::move(whom), request.dry_run, typed.timeout}, std::move(sources), typed.output};
    if (typed.is_about_policies()) return show_policies(options);
    if (typed.is_by_policies()) return run_pass(options);
    request.bounds_all = typed.timeout.has_value();
    request.timeout = typed.timeout.value_or(request.timeout);
    if (typed.need) {
        request.min_awake = typed.min_awake;
        return make_room(typed, options.sources);
    }
    const auto idle = is_one_time ? options.sources.ladder->front().idle : Milliseconds(0);
    const model::IdleSleepRequest idle_request{std::move(request), idle};
    if (!typed.why) return cli::run(k_program, {options.request.whom, idle_request}, typed.output);
    const bool is_told = !is_one_time && !typed.output.json && !typed.output.quiet;
    auto policies = is_told ? describe_policies(options) : std::map<pid_t, std::string>();
    if (!policies) return cli::tell_failure(k_program, options.output, policies.error());
    return explain(options.request.whom, idle_request, typed.output, *policies);
}

} // namespace

int main(int argc, char** argv) {
    Typed typed;
    typed.request.on_touch = model::OnTouch::wake;
    if (const auto status = cli::parse(table_of(typed), argc, argv)) return *status;
    policy::Sources sources;
    auto text = read_policy(typed.policy, sources);
    if (text.empty()) text = problem(typed);
    if (text.empty())
        text = typed.is_by_policies() ? read_rest(typed.request, typed.stores, sources)
                                      : cli::read_stores(typed.stores, typed.request);
    if (!text.empty()) return cli::usage_error(k_program, text, typed.output.json);
    return run(std::move(typed), std::move(sources));
}
