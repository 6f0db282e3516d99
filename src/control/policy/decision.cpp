// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Deciding on processes and on host memory.

#include "control/policy/decision.hpp"

#include <numeric>

namespace gpu_sleep::control::policy {
namespace {

bool is_asleep(const model::Report& report) noexcept {
    return report.state == model::State::asleep || report.state == model::State::damaged;
}

/// Returns the request that `rung` makes of a process.
model::IdleSleepRequest request_for(const Rung& rung, const std::string& directory) {
    auto request =
        rung.tier < Tier::file || directory.empty() ? model::IdleSleepRequest() : request_to_move(directory);
    request.only_if_idle = rung.idle;
    request.sleep.deep = rung.tier == Tier::deep;
    return request;
}

/// The tags of the process, each once.
std::vector<std::string> tags_of(const model::Report& report) {
    std::vector<std::string> names;
    for (const auto& tag : report.tags)
        if (std::ranges::find(names, tag.tag) == names.end()) names.push_back(tag.tag);
    return names;
}

/// Leaves out the tags that are exempt, and has the others in their stores. False if none is left.
bool heed_tags(const Policy& policy, const std::vector<std::string>& names, model::SleepRequest& request) {
    bool has_exempt = false;
    std::vector<std::string> left;
    for (const auto& name : names) {
        const auto found = policy.tags.find(name);
        const auto tag = found == policy.tags.end() ? TagSettings() : found->second;
        if (tag.exempt.value_or(false)) {
            has_exempt = true;
            continue;
        }
        left.push_back(name);
        const bool is_moved = request.store == model::Store::file;
        if (tag.store == model::Store::file && !is_moved) request.stores.push_back({name, *tag.store});
    }
    if (has_exempt) request.tags = left;
    return !has_exempt || !left.empty();
}

Bytes minus(Bytes from, Bytes what) noexcept {
    return from - std::min(from, what);
}

/// Returns how much of what the holder retains its sleep uses.
Bytes reused_by(const Holder& holder) noexcept {
    return std::min(holder.retained, holder.incoming);
}

/// Takes off what the holders hold until a budget is kept.
class Planner {
public:
    Planner(std::vector<Holder> holders, HostPlan& plan) : holders_(std::move(holders)), plan_(plan) {}

    /// Over the holders of `user`, or over all.
    void keep(Bytes budget, std::optional<uid_t> user) {
        auto chosen = holders_of(user);
        const auto by = [&](auto&& what) {
            std::ranges::stable_sort(
                chosen, [&](std::size_t one, std::size_t other) { return what(one) > what(other); });
        };
        by([&](std::size_t i) { return holders_[i].retained; });
        for (const auto i : chosen)
            if (needed(user) > budget && holders_[i].incoming == 0) release(i);
        by([&](std::size_t i) { return holders_[i].unused_seconds; });
        for (const auto i : chosen)
            if (needed(user) > budget && holders_[i].can_move && holders_[i].held > 0) move(i);
    }

    /// Releases what processes retain that find no room for their sleep.
    void finish(const Budgets& budgets) {
        const auto has_room = find_room(holders_, budgets);
        for (std::size_t i = 0; i < holders_.size(); ++i)
            if (!has_room[i]) release(i);
        plan_.has_room = find_room(holders_, budgets);
        for (const auto& [user, budget] : budgets.users) note_excess(budget, user);
        if (budgets.machine) note_excess(*budgets.machine, std::nullopt);
    }

private:
    [[nodiscard]] std::vector<std::size_t> holders_of(std::optional<uid_t> user) const {
        std::vector<std::size_t> chosen;
        for (std::size_t i = 0; i < holders_.size(); ++i)
            if (!user || holders_[i].user == *user) chosen.push_back(i);
        return chosen;
    }
    /// How much is held once the plan is done, without what is incoming.
    [[nodiscard]] Bytes held(std::optional<uid_t> user) const {
        Bytes sum = 0;
        for (const auto i : holders_of(user)) sum += holders_[i].held;
        return sum;
    }
    /// With what is incoming.
    [[nodiscard]] Bytes needed(std::optional<uid_t> user) const {
        Bytes sum = held(user);
        for (const auto i : holders_of(user)) sum += holders_[i].incoming - reused_by(holders_[i]);
        return sum;
    }
    void release(std::size_t i) {
        auto& holder = holders_[i];
        if (holder.retained == 0) return;
        holder.held = minus(holder.held, std::exchange(holder.retained, 0));
        plan_.release.push_back(i);
    }
    void move(std::size_t i) {
        holders_[i].held = 0;
        plan_.move.push_back(i);
    }
    void note_excess(Bytes budget, std::optional<uid_t> user) {
        if (const auto now = held(user); now > budget) plan_.left.push_back({user, budget, now});
    }

    std::vector<Holder> holders_; ///< as they are once the plan is done
    HostPlan& plan_;
};

} // namespace

bool sleeps_in_host_memory(const model::Report& report) noexcept {
    return is_asleep(report) &&
           std::ranges::any_of(report.tags, [](const auto& tag) { return tag.kept > tag.in_files; });
}

Tier tier_of(const model::Report& report) noexcept {
    if (!is_asleep(report)) return Tier::awake;
    if (report.deep) return Tier::deep;
    // A process that keeps no host memory is in nobody's way.
    return sleeps_in_host_memory(report) ? Tier::host : Tier::file;
}

std::optional<double> unused_seconds(const model::Report& report) noexcept {
    if (!is_asleep(report)) return report.idle_seconds;
    if (report.waiting > 0) return 0;
    return std::max(report.idle_seconds.value_or(0), report.state_seconds);
}

Result<Decision> decide(const Policy& policy, const model::Report& report) {
    if (policy.ladder.empty())
        return Decision{{},
                        policy.exempt_by.empty() ? "no policy puts it to sleep"
                                                 : "it is exempt by " + policy.exempt_by};
    if (policy.directory.empty() && leads_to_files(policy.ladder))
        return make_error(ErrorCode::invalid_argument, "{}", k_directory_missing);
    const auto idle = unused_seconds(report);
    if (!idle) return Decision{{}, "it is not known whether it is idle"};
    const auto tier = tier_of(report);
    const auto rung = rung_at(policy.ladder, *idle);
    if (rung ? rung->tier <= tier : tier != Tier::awake) return Decision{{}, "it is already asleep"};
    if (!rung)
        return Decision{{},
                        *idle == 0 ? "it is not idle"
                                   : model::not_yet("idle", *idle, seconds_of(policy.ladder.front().idle))};
    const auto min_awake = seconds_of(policy.min_awake.value_or(Milliseconds(0)));
    const auto awake = report.state == model::State::paused // which is no wake
                           ? report.seconds_since_wake.value_or(std::numeric_limits<double>::infinity())
                           : report.state_seconds;
    if (tier == Tier::awake && awake < min_awake)
        return Decision{{}, model::not_yet("awake", awake, min_awake)};
    auto idle_request = request_for(*rung, policy.directory);
    auto& request = idle_request.sleep;
    if (!heed_tags(policy, tags_of(report), request)) return Decision{{}, "all of its tags are exempt"};
    const bool has_exempt = !request.tags.empty(); // only all of a process sleeps deeply
    if (request.deep && (has_exempt || !report.deep_refusal.empty())) {
        request.deep = false;
        if (tier >= (request.store == model::Store::file ? Tier::file : Tier::host))
            return Decision{{},
                            has_exempt
                                ? "it is already asleep, except for exempt tags"
                                : "it is already asleep, and cannot sleep deeply: " + report.deep_refusal};
    }
    if (tier == Tier::awake) request.on_touch = model::OnTouch::wake;
    request.spill = policy.spill && request.store == model::Store::host && !policy.directory.empty();
    const bool needs_directory = request.spill || model::uses_files(request);
    if (needs_directory && policy.directory.empty())
        return make_error(ErrorCode::invalid_argument, "no directory is set for contents in files");
    if (needs_directory) request.directory = policy.directory;
    // Also that there is none any more.
    request.host_budget = policy.host_budget.value_or(std::numeric_limits<Bytes>::max());
    return Decision{std::move(idle_request), {}};
}

void heed(const Policy& policy, const model::Report& report, model::SleepRequest& request) {
    if (!request.min_awake) request.min_awake = policy.min_awake;
    if (policy.directory.empty() || model::uses_files(request)) return;
    auto without_exempt = policy; // whose memory is needed all the same
    for (auto& [name, tag] : without_exempt.tags) tag.exempt.reset();
    if (!policy.ladder.empty() && policy.ladder.front().tier >= Tier::file)
        request.store = model::Store::file;
    heed_tags(without_exempt, tags_of(report), request);
    request.spill = policy.spill && request.store == model::Store::host;
    if (request.spill || model::uses_files(request)) request.directory = policy.directory;
}

model::IdleSleepRequest request_to_move(const std::string& directory) {
    model::IdleSleepRequest request; // however short it has slept
    request.sleep.store = model::Store::file;
    request.sleep.store_is_named = true;
    request.sleep.directory = directory;
    return request;
}

HostPlan plan_host_memory(const std::vector<Holder>& holders, const Budgets& budgets) {
    HostPlan plan;
    Planner planner(holders, plan);
    for (const auto& [user, budget] : budgets.users) planner.keep(budget, user);
    if (budgets.machine) planner.keep(*budgets.machine, std::nullopt);
    planner.finish(budgets);
    return plan;
}

std::vector<bool> find_room(const std::vector<Holder>& holders, const Budgets& budgets) {
    std::vector<std::size_t> order(holders.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return holders[i].unused_seconds; });
    auto machine = budgets.machine;
    auto users = budgets.users;
    for (const auto& holder : holders) {
        const auto held = holder.held - reused_by(holder);
        if (machine) machine = minus(*machine, held);
        if (const auto own = users.find(holder.user); own != users.end())
            own->second = minus(own->second, held);
    }
    std::vector<bool> has_room(holders.size(), true);
    for (const auto i : order) {
        const auto incoming = holders[i].incoming;
        const auto own = users.find(holders[i].user);
        has_room[i] =
            incoming <= machine.value_or(incoming) && (own == users.end() || incoming <= own->second);
        if (!has_room[i]) continue;
        if (machine) *machine -= incoming;
        if (own != users.end()) own->second -= incoming;
    }
    return has_room;
}

} // namespace gpu_sleep::control::policy
