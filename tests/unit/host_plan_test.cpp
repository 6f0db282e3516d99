// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What is given back of host memory when a budget is exceeded.

#include "control/policy/decision.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::control::policy;

namespace {

constexpr uid_t k_alice = 1;
constexpr uid_t k_bob = 2;
using Places = std::vector<std::size_t>;

Holder sleeper(uid_t user, Bytes held, double seconds) {
    return {user, held, 0, 0, seconds, true};
}

Holder retaining(uid_t user, Bytes held) {
    return {user, held, held, 0, 0, false};
}

} // namespace

TEST_CASE("Host plan: nothing is given back within the budgets", "[host_plan]") {
    const auto plan =
        plan_host_memory({sleeper(k_alice, 60, 5), retaining(k_bob, 40)}, {100, {{k_alice, 60}}});
    CHECK(plan.release.empty());
    CHECK(plan.move.empty());
    CHECK(plan.left.empty());
}

TEST_CASE("Host plan: retained memory goes first, then the longest sleeping, if needed", "[host_plan]") {
    const std::vector<Holder> holders{sleeper(k_alice, 50, 5), sleeper(k_alice, 50, 9),
                                      retaining(k_alice, 20), retaining(k_bob, 30), sleeper(k_bob, 50, 7)};
    const auto plan = [&](Bytes budget) { return plan_host_memory(holders, {budget, {}}); };
    CHECK(plan(180).release == Places{3});
    CHECK(plan(170).release == Places{3});
    CHECK(plan(160).release == Places{3, 2});
    CHECK(plan(150).move.empty());
    CHECK(plan(149).move == Places{1});
    CHECK(plan(99).move == Places{1, 4});
    CHECK(plan(0).move == Places{1, 4, 0});
    CHECK(plan(0).left.empty());
}

TEST_CASE("Host plan: each user's budget binds that user, and counts for the machine's", "[host_plan]") {
    const std::vector<Holder> holders{sleeper(k_alice, 50, 1), sleeper(k_bob, 50, 100),
                                      sleeper(k_alice, 50, 2)};
    auto plan = plan_host_memory(holders, {{}, {{k_alice, 60}}});
    CHECK(plan.move == Places{2});
    plan = plan_host_memory(holders, {100, {{k_alice, 60}}});
    CHECK(plan.move == Places{2});
    plan = plan_host_memory(holders, {99, {{k_alice, 60}}});
    CHECK(plan.move == Places{2, 1});
}

TEST_CASE("Host plan: what is about to come counts, and what stays exceeded is said", "[host_plan]") {
    auto soon = retaining(k_alice, 0);
    soon.incoming = 30;
    auto stuck = sleeper(k_alice, 80, 3);
    stuck.can_move = false;
    auto plan = plan_host_memory({soon, stuck, sleeper(k_alice, 10, 1)}, {100, {}});
    CHECK(plan.move == Places{2});
    CHECK(plan.left.empty()); // it does not come
    plan = plan_host_memory({soon, stuck, sleeper(k_alice, 10, 1)}, {70, {}});
    CHECK(plan.move == Places{2});
    REQUIRE(plan.left.size() == 1);
    CHECK_FALSE(plan.left[0].user);
    CHECK(plan.left[0].budget == 70);
    CHECK(plan.left[0].held == 80);
    plan = plan_host_memory({stuck}, {{}, {{k_alice, 79}}});
    CHECK(plan.left[0].user == k_alice);
}

TEST_CASE("Host plan: what has been idle for longest has the room that is left", "[host_plan]") {
    const auto soon = [](uid_t user, Bytes incoming, double seconds) {
        return Holder{user, 10, 0, incoming, seconds, false};
    };
    const std::vector<Holder> holders{soon(k_alice, 30, 1), soon(k_bob, 30, 9), soon(k_alice, 20, 5),
                                      sleeper(k_bob, 20, 99)};
    using Rooms = std::vector<bool>;
    CHECK(find_room(holders, {}) == Rooms{true, true, true, true});
    CHECK(find_room(holders, {130, {}}) == Rooms{true, true, true, true}); // 50 are held
    CHECK(find_room(holders, {129, {}}) == Rooms{false, true, true, true});
    CHECK(find_room(holders, {80, {}}) == Rooms{false, true, false, true});
    CHECK(find_room(holders, {79, {}}) == Rooms{false, false, true, true}); // a smaller one fits
    CHECK(find_room(holders, {10, {}}) == Rooms{false, false, false, true});
    CHECK(find_room(holders, {130, {{k_bob, 59}}}) == Rooms{true, false, true, true});
    CHECK(find_room(holders, {{}, {{k_alice, 40}}}) == Rooms{false, true, true, true});
}

TEST_CASE("Host plan: what a process retains gives no room to a sleep that the budget forbids",
          "[host_plan]") {
    const auto soon = [](uid_t user, Bytes retained, double seconds) {
        return Holder{user, retained, retained, 8, seconds, false};
    };
    using Rooms = std::vector<bool>;
    const std::vector<Holder> both{soon(k_alice, 8, 1), soon(k_alice, 8, 2)};
    const auto [budgets, release, rooms] =
        GENERATE(table<Budgets, Places, Rooms>({{{16, {}}, {}, {true, true}},
                                                {{15, {}}, {0}, {false, true}},
                                                {{4, {}}, {0, 1}, {false, false}},
                                                {{{}, {{k_alice, 4}}}, {0, 1}, {false, false}}}));
    const auto plan = plan_host_memory(both, budgets);
    CHECK(plan.release == release);
    CHECK(plan.has_room == rooms);
    CHECK(plan.left.empty());
    // Another process gives back what it retains first.
    CHECK(plan_host_memory({soon(k_alice, 8, 1), retaining(k_bob, 9)}, {8, {}}).has_room ==
          Rooms{true, true});
}
