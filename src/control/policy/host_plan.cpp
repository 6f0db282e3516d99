// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sums of what is held, and what is taken off them.

#include "control/policy/host_plan.hpp"

#include <algorithm>
#include <numeric>

namespace gpu_sleep::control::policy {
namespace {

Bytes minus(Bytes from, Bytes what) noexcept {
    return from - std::min(from, what);
}

/// Takes off what the holders hold until a budget is kept.
class Planner {
public:
    Planner(const std::vector<Holder>& holders, HostPlan& plan) : holders_(holders), plan_(plan) {}

    /// Over the holders of `user`, or over all.
    void keep(Bytes budget, std::optional<uid_t> user) {
        auto chosen = holders_of(user);
        const auto by = [&](auto&& what) {
            std::stable_sort(chosen.begin(), chosen.end(),
                             [&](std::size_t one, std::size_t other) { return what(one) > what(other); });
        };
        by([&](std::size_t i) { return holders_[i].retained; });
        for (const auto i : chosen)
            if (held(user) + incoming(user) > budget && holders_[i].retained > 0 && !released_[i]) {
                released_[i] = true;
                plan_.release.push_back(i);
            }
        by([&](std::size_t i) { return holders_[i].unused_seconds; });
        for (const auto i : chosen)
            if (held(user) + incoming(user) > budget && holders_[i].can_move && left_of(i) > 0 &&
                !moved_[i]) {
                moved_[i] = true;
                plan_.move.push_back(i);
            }
        if (const auto now = held(user); now > budget) plan_.left.push_back({user, budget, now});
    }

private:
    [[nodiscard]] std::vector<std::size_t> holders_of(std::optional<uid_t> user) const {
        std::vector<std::size_t> chosen;
        for (std::size_t i = 0; i < holders_.size(); ++i)
            if (!user || holders_[i].user == *user) chosen.push_back(i);
        return chosen;
    }
    /// What the holder holds beside what is incoming, once the plan is done.
    [[nodiscard]] Bytes left_of(std::size_t i) const {
        const auto& holder = holders_[i];
        if (moved_[i]) return 0;
        return released_[i] ? minus(holder.held, holder.retained) : holder.held;
    }
    [[nodiscard]] Bytes held(std::optional<uid_t> user) const {
        Bytes sum = 0;
        for (const auto i : holders_of(user)) sum += left_of(i);
        return sum;
    }
    [[nodiscard]] Bytes incoming(std::optional<uid_t> user) const {
        Bytes sum = 0;
        for (const auto i : holders_of(user)) sum += holders_[i].incoming;
        return sum;
    }

    const std::vector<Holder>& holders_;
    HostPlan& plan_;
    std::vector<bool> released_ = std::vector<bool>(holders_.size());
    std::vector<bool> moved_ = std::vector<bool>(holders_.size());
};

} // namespace

HostPlan plan_host_memory(const std::vector<Holder>& holders, const Budgets& budgets) {
    HostPlan plan;
    Planner planner(holders, plan);
    for (const auto& [user, budget] : budgets.users) planner.keep(budget, user);
    if (budgets.machine) planner.keep(*budgets.machine, std::nullopt);
    return plan;
}

std::vector<bool> find_room(const std::vector<Holder>& holders, const Budgets& budgets) {
    std::vector<std::size_t> order(holders.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t one, std::size_t other) {
        return holders[one].unused_seconds > holders[other].unused_seconds;
    });
    auto machine = budgets.machine;
    auto users = budgets.users;
    for (const auto& holder : holders) {
        if (machine) machine = minus(*machine, holder.held);
        if (const auto own = users.find(holder.user); own != users.end())
            own->second = minus(own->second, holder.held);
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
