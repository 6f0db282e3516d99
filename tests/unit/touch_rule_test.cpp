// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How touches are met: who is heard, and what passes.

#include "program_memory/locked_memory.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep;
using agent::TouchRule;
using ledger::Ledger;
using model::GateMode;
using model::OnTouch;
using model::Residence;

namespace {

/// A part of a process's memory.
struct Part {
    const char* tag;
    bool sleeps;
    bool own = false; ///< put to sleep by the program
    bool must_stay = false;
};

using Parts = std::vector<Part>;

Ledger ledger_of(const Parts& parts, const std::vector<std::string>& separable = {}) {
    Ledger ledger;
    std::uint64_t address = 0x1000;
    for (const auto& part : parts) {
        ledger::Backing backing;
        backing.address = address;
        backing.bytes = backing.allocated = 0x100;
        backing.tag = ledger.tag_id(part.tag);
        backing.stay_reason = part.must_stay ? "shared" : nullptr;
        auto& added = ledger.add(std::move(backing));
        if (part.sleeps) REQUIRE(Ledger::move(added, Residence::kept));
        added.slept_by_program = part.own;
        address += 0x1000;
    }
    for (const auto& tag : separable) ledger.set_separable(ledger.tag_id(tag), true);
    return ledger;
}

constexpr Part k_awake{"weights", false};
constexpr Part k_own{"kv_cache", true, true};
constexpr Part k_others{"other", true, false};

} // namespace

TEST_CASE("Touch rule: a checked gate is the operator's choice, or a parting program's", "[touch_rule]") {
    struct Case {
        const char* what;
        Parts parts;
        std::vector<std::string> separable;
        bool is_whole;
        GateMode expected;
    };
    const auto shut = GateMode::shut;
    const auto checked = GateMode::checked;
    const std::vector<Case> cases = {
        {"put to sleep from outside", {k_awake, k_others}, {}, false, shut},
        {"by the program", {k_awake, k_own}, {}, false, checked},
        {"one each", {k_awake, k_own, k_others}, {}, false, shut},
        {"separable", {k_awake, k_others}, {"other"}, false, checked},
        {"of two, one separable", {k_awake, k_others, {"third", true}}, {"other"}, false, shut},
        {"of two, both separable", {k_awake, k_others, {"third", true}}, {"other", "third"}, false, checked},
        {"by the program, and separable", {k_awake, k_own, k_others}, {"other"}, false, checked},
        {"separable is what is awake", {k_awake, k_others}, {"weights"}, false, shut},
        {"all that there is, by its name", {k_own}, {}, false, checked},
        {"all, by the program", {k_own, {"weights", true, true}}, {}, true, shut},
        {"all, and separable", {k_others}, {"other"}, true, shut},
        {"all but what must stay", {k_own, {"weights", false, false, true}}, {}, true, shut},
        {"all, and a part woke", {k_own, k_awake}, {}, true, checked},
        {"all from outside, and a part woke", {k_others, k_awake}, {}, true, shut},
    };
    for (const auto& each : cases) {
        INFO(each.what);
        const auto ledger = ledger_of(each.parts, each.separable);
        TouchRule rule;
        rule.is_whole = each.is_whole;
        CHECK(agent::gate_mode(rule, ledger) == each.expected);
        for (const auto asked : {shut, checked}) {
            rule.gate = asked;
            CHECK(agent::gate_mode(rule, ledger) == asked);
        }
    }
}

TEST_CASE("Touch rule: a wake ends what the program's own sleep has declared", "[touch_rule]") {
    auto ledger = ledger_of({{"kv_cache", true}, {"kv_cache", false}, {"other", true}});
    auto& cache = *ledger.find(0x1000);
    ledger.note_own_sleep({"kv_cache"});
    CHECK(cache.slept_by_program);
    CHECK_FALSE(ledger.find(0x2000)->slept_by_program); // it is awake
    CHECK_FALSE(ledger.find(0x3000)->slept_by_program);
    REQUIRE(Ledger::move(cache, Residence::dropped)); // deeper, by whomever
    CHECK(cache.slept_by_program);
    REQUIRE(Ledger::move(cache, Residence::device));
    CHECK_FALSE(cache.slept_by_program);
    ledger.note_own_sleep({}); // all
    CHECK_FALSE(cache.slept_by_program);
    CHECK(ledger.find(0x3000)->slept_by_program);
}

TEST_CASE("Touch rule: a sleep is heard until all is awake, and then the environment", "[touch_rule]") {
    const TouchRule environment{OnTouch::wake, Milliseconds(5), GateMode::shut};
    const TouchRule now{OnTouch::fail, Milliseconds(7), GateMode::checked, true};
    model::SleepRequest request;
    request.tags = {"weights"};
    CHECK(agent::touch_rule_after(now, environment, request, {}) == environment);
    CHECK(agent::touch_rule_after(now, environment, request, {true}) ==
          TouchRule{OnTouch::fail, Milliseconds(7), GateMode::checked, false});
    request.on_touch = OnTouch::wait;
    request.touch_limit = Milliseconds(9);
    request.gate = GateMode::shut;
    const TouchRule asked{OnTouch::wait, Milliseconds(9), GateMode::shut, false};
    CHECK(agent::touch_rule_after(now, environment, request, {true}) == asked);
    CHECK(agent::touch_rule_after(now, TouchRule(), request, {}) == asked);
    request = {};
    CHECK(agent::touch_rule_after(now, TouchRule(), request, {}) ==
          TouchRule{OnTouch::wait, std::nullopt, std::nullopt, true});
}

TEST_CASE("Touch rule: who takes a paused process's memory unasked does not end the pause", "[touch_rule]") {
    const TouchRule now{OnTouch::wait, std::nullopt, std::nullopt};
    const auto after = [&](const model::SleepRequest& request, agent::Before before) {
        return agent::touch_rule_after(now, TouchRule(), request, before).on_touch;
    };
    model::SleepRequest by_hand;
    by_hand.on_touch = OnTouch::wake;
    auto for_room = by_hand;
    for_room.min_awake = Milliseconds(0);
    CHECK(after(by_hand, {true, true, false}) == OnTouch::wake);
    for (const auto& [request, is_for_idle] : {std::pair(by_hand, true), std::pair(for_room, false)}) {
        CHECK(after(request, {true, true, is_for_idle}) == OnTouch::wait);
        CHECK(after(request, {true, false, is_for_idle}) == OnTouch::wake);
        CHECK(after(request, {false, true, is_for_idle}) == OnTouch::wake); // it is the pause
    }
    auto whole = now;
    whole.is_whole = true;
    model::SleepRequest pause;
    pause.level = model::Level::pause;
    CHECK(agent::touch_rule_after(now, TouchRule(), pause, {true}) == now); // no sleep of all
    CHECK(agent::touch_rule_after(whole, TouchRule(), pause, {true}) == whole);
}
