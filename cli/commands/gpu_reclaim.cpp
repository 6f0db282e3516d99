// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-reclaim: puts to sleep what has been idle, or says why not.

#include "cli/command_run.hpp"
#include "cli/pass.hpp"
#include "cli/show/output.hpp"
#include "cli/show/render.hpp"
#include "control/listing.hpp"

using namespace gpu_sleep;

namespace {

namespace policy = control::policy;
constexpr const char* k_examples =
    "  gpu-reclaim                 processes idle for 15 min, or by gpu-sleep.toml\n"
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

/// What was typed.
struct Typed {
    control::Selection whom;
    std::string target;
    std::optional<Milliseconds> idle, timeout, wait;
    std::string config;
    std::optional<Bytes> need;
    std::string gpu;
    bool dry_run = false, why = false;
    cli::OutputOptions output;

    /// Whether it is about all policies, and no process.
    [[nodiscard]] bool is_about_policies() const { return why && target.empty(); }
    /// Whether policies decide for each process, and not one time for all.
    [[nodiscard]] bool is_by_policies() const { return is_about_policies() || (!why && !need && !idle); }
};

usage::Table table_of(Typed& typed) {
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
        {{"When processes sleep",
          {usage::brief({"--idle", usage::duration(typed.idle),
                         "Put processes to sleep that have had no GPU work for this long"}),
           {"--config", usage::path("FILE", typed.config),
            "The administrator's configuration, in place of /etc/gpu-sleep.toml"}}},
         {"Room on a GPU",
          {usage::brief({"--need", usage::size(typed.need),
                         "Put processes to sleep until this much memory of one GPU is free"}),
           {"--gpu", usage::text("GPU", read_gpu),
            "With --need: which GPU, by its number or UUID in nvidia-smi (default: the only GPU)"},
           cli::wait_row(typed.wait, "0 s")}},
         {"Which processes", {cli::target_row(typed.target), cli::user_row(typed.whom.user)}},
         {"How they go to sleep",
          {usage::brief(cli::dry_run_row(typed.dry_run)),
           usage::brief(
               {"--why", usage::flag(typed.why),
                "Explain when PID would sleep, and what prevents it; without PID, for every process"}),
           {"--timeout", usage::duration(typed.timeout),
            "Give up on a process if its GPU memory is not released within this time (default: 30 s, not "
            "counting copying)"}}},
         {"Output", {cli::json_row(typed.output.json), usage::brief(cli::quiet_row(typed.output.quiet))}}},
        k_examples,
        fmt::format("with --need, 1 if there is no room; otherwise the worst status of all processes, where "
                    "nothing to do counts as 0: {}",
                    cli::k_exit_statuses),
        {},
        {{"--wait", "--need"}, {"--gpu", "--need"}},
        {{"--config", "--idle"}, {"--why", "--need"}}};
}

/// Room on a GPU, by sleeps that heed the policy of each process.
int make_room(const Typed& typed, const model::SleepRequest& request, const policy::Sources& sources) {
    auto policies = cli::load_policies(sources);
    if (!policies) return cli::tell_failure(k_program, typed.output, policies.error());
    control::Need need{*typed.need, typed.gpu, typed.target, typed.whom.user, request};
    need.until = Clock::now() + typed.wait.value_or(Milliseconds(0));
    need.only_if_idle = typed.idle;
    need.adapt = [&](const control::Process& process, const model::Report& report, auto& asked) {
        heed(policies->of(process, report.name), report, asked);
        if (!asked.min_awake) asked.min_awake = model::WakeRequest().min_awake;
    };
    const int status = cli::run_need(need, typed.output);
    cli::tell_complaints(*policies);
    return status;
}

int run(const Typed& typed) {
    policy::Sources sources;
    if (typed.idle) sources.ladder = policy::Ladder{{*typed.idle, policy::Tier::host}};
    if (!typed.config.empty()) sources.config = typed.config;
    auto whom = typed.whom;
    if (!typed.target.empty()) whom.words.push_back(typed.target);
    const cli::PassOptions options{
        {std::move(whom), typed.dry_run, typed.timeout}, std::move(sources), typed.output};
    if (typed.is_about_policies()) return show_policies(options);
    if (typed.is_by_policies()) return run_pass(options);
    model::SleepRequest request;
    request.on_touch = model::OnTouch::wake;
    request.dry_run = typed.dry_run;
    request.asker = typed.need ? "room for gpu-reclaim" : k_program;
    request.bounds_all = typed.timeout.has_value();
    request.timeout = typed.timeout.value_or(request.timeout);
    if (typed.need) return make_room(typed, request, options.sources);
    const model::IdleSleepRequest idle_request{std::move(request), typed.idle.value_or(Milliseconds(0))};
    if (!typed.why) return cli::run(k_program, {options.request.whom, idle_request}, typed.output);
    const bool is_told = !typed.idle && !typed.output.json && !typed.output.quiet;
    auto policies = is_told ? describe_policies(options) : std::map<pid_t, std::string>();
    if (!policies) return cli::tell_failure(k_program, options.output, policies.error());
    return explain(options.request.whom, idle_request, typed.output, *policies);
}

} // namespace

int main(int argc, char** argv) {
    Typed typed;
    if (const auto status = cli::parse(table_of(typed), argc, argv)) return *status;
    return run(typed);
}
