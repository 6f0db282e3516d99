// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Host memory first, then sleeps; and what is told of both.

#include "cli/pass.hpp"

#include "cli/json.hpp"
#include "cli/operation.hpp"
#include "cli/output.hpp"
#include "cli/render.hpp"
#include "cli/render_lines.hpp"
#include "cli/signals.hpp"
#include "control/driver_engine.hpp"
#include "control/gpus.hpp"
#include "control/policy/look.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace gpu_sleep::cli {
namespace {

/// What an agent is asked to do.
struct Job {
    control::Process process;
    model::SleepRequest request;
};

/// Keeps what became of each process, and tells of it.
class Account {
public:
    explicit Account(const PassOptions& options) noexcept : options_(options) {}

    /// Tells what failed, and notes what was done.
    void add(control::Outcome outcome) {
        status_ = control::worse_of(status_, exit_status_of(outcome));
        const auto* const error = peers::error_of(outcome.answer);
        const auto subject = title(outcome.process);
        if (error)
            print_error(render_error(options_.program, fmt::format("put {} to sleep", subject),
                                     without(subject, *error)));
        else if (const auto& report = std::get<model::Report>(outcome.answer);
                 is_told_ && (does_something(report) || !options_.target.empty()))
            text_ += render_operation(outcome.process, numbers_.in(report));
        outcomes_.push_back(std::move(outcome));
    }

    /// Tells of an error that is no process's.
    void fail(const Error& error) {
        print_error(fmt::format("{}: {}\n", options_.program, error.message));
        if (status_ == exit_status::done) status_ = traits(error.code).exit_status;
        if (!error_) error_ = error;
    }

    /// Whether something was told of the process.
    [[nodiscard]] bool has(pid_t pid) const {
        return std::any_of(outcomes_.begin(), outcomes_.end(),
                           [=](const control::Outcome& each) { return each.process.pid == pid; });
    }

    /// Prints all of it. Returns the exit status.
    [[nodiscard]] int finish() {
        if (options_.output.json)
            text_ = (error_ ? to_json(options_.program, outcomes_, *error_, status_)
                            : to_json(options_.program, outcomes_)) +
                    '\n';
        else if (is_told_ && text_.empty() && status_ == exit_status::done)
            text_ = "nothing to do\n";
        else if (is_told_)
            text_ += render_total(outcomes_);
        const int written = print_result(options_.program, text_);
        return status_ == exit_status::done ? written : status_;
    }

private:
    const PassOptions& options_;
    const bool is_told_ = !options_.output.json && !options_.output.quiet; ///< on standard output, in words
    std::vector<control::Outcome> outcomes_;
    control::GpuNumbers numbers_;
    std::optional<Error> error_; ///< the first that is no process's
    std::string text_;
    int status_ = exit_status::done;
};

std::vector<control::Outcome> carry_out(const PassOptions& options, control::Finder& finder,
                                        std::vector<Job> orders) {
    constexpr Milliseconds k_grace_of_pass{5'000}; // the agent keeps the limit, and then undoes what it did
    std::vector<peers::Question> questions;
    std::vector<control::Process> asked;
    std::vector<control::Outcome> outcomes;
    std::optional<control::DeepLocker> locker;
    const auto goes_deep = [](const Job& order) { return order.request.deep; };
    if (!options.dry_run && std::any_of(orders.begin(), orders.end(), goes_deep)) locker.emplace();
    for (auto& [process, request] : orders) {
        request.dry_run = options.dry_run;
        request.bounds_all = options.timeout.has_value();
        request.timeout = options.timeout.value_or(request.timeout);
        auto socket = finder.connect(process);
        if (!socket) {
            outcomes.push_back({std::move(process), std::move(socket).error()});
            continue;
        }
        const peers::AnswerTimeout::Limits limits{
            request.timeout, k_grace_of_pass, !request.bounds_all, {}, 1};
        const bool is_deep = locker && request.deep;
        const auto timeout = request.timeout;
        questions.push_back({*std::move(socket), std::move(request), limits,
                             [&finder, one = process] { return finder.proc().is_stopped(one); }});
        if (is_deep) questions.back().deep_steps = locker->steps(process, timeout);
        asked.push_back(std::move(process));
    }
    auto answers = peers::ask_all(std::move(questions));
    for (std::size_t i = 0; i < asked.size(); ++i)
        outcomes.push_back({std::move(asked[i]), std::move(answers[i])});
    ask_again(finder, outcomes);
    if (options.target.empty()) drop_ended(outcomes);
    return outcomes;
}

std::string whose(const policy::HostPlan::Excess& excess) {
    return excess.user ? control::user_name(*excess.user) + "'s processes" : "all processes";
}

/// What the budgets ask for.
std::vector<Job> orders_for(const policy::HostPlan& plan, const policy::Look& look) {
    std::vector<Job> orders;
    model::SleepRequest release;
    release.release_retained = true;
    for (const auto i : plan.release) orders.push_back({look.seen[i].process, release});
    for (const auto i : plan.move)
        orders.push_back({look.seen[i].process, policy::request_to_move(look.seen[i].policy.directory)});
    return orders;
}

/// What becomes of a process for which the budgets leave no room in host memory.
policy::Decision without_room(policy::Decision decision, const policy::Policy& policy) {
    if (policy.directory.empty())
        return {{}, "it does not fit into the host memory budget, and no directory is set for files"};
    decision.request->store = model::Store::file;
    decision.request->stores.clear();
    decision.request->spill = false;
    decision.request->directory = policy.directory;
    return decision;
}

/// What the decisions ask for. Those of whom nothing is asked are noted, with the reason.
std::vector<Job> orders_for(policy::Look& look, const policy::Budgets& budgets, Account& account) {
    const auto has_room = find_room(holders_of(look.seen), budgets);
    std::vector<Job> orders;
    for (std::size_t i = 0; i < look.seen.size(); ++i) {
        auto& [process, report, policy, decision] = look.seen[i];
        if (!has_room[i]) decision = without_room(std::move(decision), policy);
        if (decision.request) {
            orders.push_back({std::move(process), *std::move(decision.request)});
        } else if (!account.has(process.pid)) {
            report.operation = model::Operation::sleep;
            report.notes.insert(report.notes.begin(), decision.reason);
            account.add({std::move(process), std::move(report)});
        }
    }
    return orders;
}

Result<void> pass(const PassOptions& options, policy::Policies& policies, Account& account) {
    control::Finder finder;
    policy::Whom whom{options.target, options.user};
    whom.patience = options.timeout.value_or(whom.patience);
    auto found = look(finder, policies, whom);
    if (!found) return std::move(found).error();
    tell_complaints(options.program, policies);
    const auto budgets = policies.budgets(processes_of(*found));
    const auto plan = plan_host_memory(holders_of(found->seen), budgets);
    auto orders = orders_for(plan, *found);
    const bool gives_back = !orders.empty();
    for (auto& outcome : carry_out(options, finder, std::move(orders))) account.add(std::move(outcome));
    for (const auto& excess : plan.left)
        account.fail(make_error(ErrorCode::out_of_host_memory,
                                "cannot keep to the budget of {} for the host memory of {}: {} would still "
                                "be held, and nothing is left to give back or to move to a directory",
                                format_bytes(excess.budget), whose(excess), format_bytes(excess.held)));
    if (gives_back && !options.dry_run) found = look(finder, policies, whom);
    if (!found) return std::move(found).error();
    orders = orders_for(*found, budgets, account);
    for (auto& failed : found->failed) account.add(std::move(failed));
    for (auto& outcome : carry_out(options, finder, std::move(orders))) account.add(std::move(outcome));
    return {};
}

} // namespace

int run_pass(const PassOptions& options) {
    control::raise_descriptor_limit();
    auto policies = policy::Policies::load(options.sources);
    if (!policies) return usage_error(options.program, policies.error().message, options.output.json);
    tell_complaints(options.program, *policies);
    Account account(options);
    const auto done = pass(options, *policies, account);
    if (done) return end_beside_driver(account.finish());
    return tell_failure(options.program, options.output, done.error());
}

} // namespace gpu_sleep::cli
