// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sums of what is held, and what is taken off them.

#include "cli/policy/host_plan.hpp"

#include <algorithm>

namespace gpu_sleep::cli::policy {
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
            if (held(user) > budget && holders_[i].retained > 0 && !released_[i]) {
                released_[i] = true;
                plan_.release.push_back(i);
            }
        by([&](std::size_t i) { return holders_[i].asleep_seconds; });
        for (const auto i : chosen)
            if (held(user) > budget && holders_[i].can_move && left_of(i) > 0 && !moved_[i]) {
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
        for (const auto i : holders_of(user)) sum += left_of(i) + holders_[i].incoming;
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

std::map<uid_t, Bytes> allowances(const std::vector<Holder>& holders, const Budgets& budgets) {
    auto allowed = budgets.users;
    if (!budgets.machine) return allowed;
    Bytes held = 0;
    Bytes incoming = 0;
    std::map<uid_t, Holder> sums;
    for (const auto& holder : holders) {
        auto& sum = sums[holder.user];
        sum.held += holder.held;
        sum.incoming += holder.incoming;
        held += holder.held;
        incoming += holder.incoming;
    }
    const auto room = minus(*budgets.machine, held);
    for (const auto& [user, sum] : sums) {
        const auto part = incoming == 0 ? 0.0L : static_cast<long double>(sum.incoming) / incoming;
        const auto share = sum.held + static_cast<Bytes>(static_cast<long double>(room) * part);
        const auto own = allowed.find(user);
        allowed[user] = own == allowed.end() ? share : std::min(own->second, share);
    }
    return allowed;
}

} // namespace gpu_sleep::cli::policy
