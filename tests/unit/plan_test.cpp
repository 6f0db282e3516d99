// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of requests and states, walked in full.

#include "sleep/plan.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep;
using ledger::Backing;
using model::Level;
using model::Residence;
using model::Retention;
using sleep::Action;
using sleep::WakeAction;

namespace {

constexpr Bytes k_unit = 2 * k_mib;

Backing& add(ledger::Ledger& ledger, std::uint64_t address, std::string_view tag, int device = 0) {
    Backing backing;
    backing.address = address;
    backing.bytes = k_unit;
    backing.allocated = k_unit - 100;
    backing.tag = ledger.tag_id(tag);
    backing.device = device;
    backing.access = 1ULL << device;
    return ledger.add(std::move(backing));
}

void put(Backing& backing, Residence residence) {
    if (residence == Residence::damaged) ledger::Ledger::move(backing, Residence::kept);
    if (residence != Residence::device) ledger::Ledger::move(backing, residence);
    if (residence == Residence::kept || residence == Residence::damaged) backing.kept.range = 1;
}

model::SleepRequest request(Level level) {
    model::SleepRequest made;
    made.level = level;
    return made;
}

/// All is in host memory, where nothing can be put right from outside.
bool is_not_in_host_memory(contents::Number /*range*/, model::Store asked) {
    return asked != model::Store::host;
}

Result<sleep::SleepPlan> plan_sleep(ledger::Ledger& ledger, const model::SleepRequest& request) {
    return sleep::plan_sleep(ledger, request, is_not_in_host_memory);
}

Result<sleep::WakePlan> plan_wake(ledger::Ledger& ledger, const model::WakeRequest& request) {
    return sleep::plan_wake(ledger, request, is_not_in_host_memory);
}

} // namespace

TEST_CASE("Plan: every request in every state does what the table says", "[plan]") {
    struct Row {
        Residence residence;
        Action keep;
        Action drop;
        Action drop_with_spans;
        WakeAction wake;
    };
    const std::vector<Row> table = {
        {Residence::device, Action::keep, Action::drop, Action::drop, WakeAction::leave},
        {Residence::kept, Action::leave, Action::give_up, Action::leave, WakeAction::restore},
        {Residence::dropped, Action::leave, Action::leave, Action::leave, WakeAction::restore},
        {Residence::damaged, Action::leave, Action::give_up, Action::give_up, WakeAction::refuse},
    };
    for (const auto& row : table) {
        INFO(to_string(row.residence));
        CHECK(sleep::action_for(row.residence, {.keep = true}) == row.keep);
        CHECK(sleep::action_for(row.residence, {.keep = true, .has_preserved = true}) == row.keep);
        CHECK(sleep::action_for(row.residence, {}) == row.drop);
        CHECK(sleep::action_for(row.residence, {.has_preserved = true}) == row.drop_with_spans);
        CHECK(sleep::wake_action_for(row.residence, false) == row.wake);
        CHECK(sleep::action_for(row.residence, {.is_mendable = true}) == row.drop);
        const bool is_damaged = row.residence == Residence::damaged;
        CHECK(sleep::action_for(row.residence, {.has_preserved = true, .is_mendable = true}) ==
              (is_damaged ? Action::leave : row.drop_with_spans));
        // Elsewhere: what would be left moves, but for what is damaged.
        const auto moved = [&](Action action) {
            return action == Action::leave && !is_damaged ? Action::move : action;
        };
        CHECK(sleep::action_for(row.residence, {.keep = true, .is_elsewhere = true}) == moved(row.keep));
        CHECK(sleep::action_for(row.residence, {.is_elsewhere = true}) == moved(row.drop));
        CHECK(sleep::action_for(row.residence,
                                {.has_preserved = true, .is_mendable = true, .is_elsewhere = true}) ==
              (is_damaged ? Action::leave : moved(row.drop_with_spans)));
        // In host memory of its own it stays, and goes elsewhere from there.
        sleep::Circumstances own{true, false, false, false};
        own.may_stay = true;
        CHECK(sleep::action_for(row.residence, own) == (row.keep == Action::keep ? Action::stay : row.keep));
        own.keep = false;
        CHECK(sleep::action_for(row.residence, own) == row.drop);
        own = {true, false, false, true};
        own.is_in_place = true;
        const auto elsewhere = moved(row.keep);
        CHECK(sleep::action_for(row.residence, own) ==
              (elsewhere == Action::move ? Action::take_out : elsewhere));
        const bool tries_again = row.residence == Residence::damaged;
        CHECK(sleep::wake_action_for(row.residence, true) == (tries_again ? WakeAction::restore : row.wake));

        // The same through whole plans over a ledger with one backing.
        ledger::Ledger ledger;
        put(add(ledger, k_unit, "weights"), row.residence);
        const auto first = test::need(plan_sleep(ledger, request(Level::keep)));
        CHECK(first.is_empty() == (row.keep == Action::leave));
        const auto second = test::need(plan_sleep(ledger, request(Level::drop)));
        CHECK(second.is_empty() == (row.drop == Action::leave));
        CHECK(second.give_up.size() == (row.drop == Action::give_up ? 1U : 0U));
        CHECK(second.move.empty());
        // Deep, where the driver has what is awake: it keeps that, and only copies are dropped.
        for (const auto* const whole : {&first, &second}) {
            auto deep = *whole;
            const bool is_refused = whole == &second && row.drop == Action::drop;
            CHECK(static_cast<bool>(deep.leave_gpu(true)) == !is_refused);
            if (is_refused) continue;
            CHECK(deep.devices.empty());
            CHECK(deep.give_up == whole->give_up);
        }
        CHECK(test::need(plan_sleep(ledger, request(Level::pause))).is_empty());
        auto in_files = request(Level::keep);
        in_files.store = model::Store::file;
        in_files.directory = "/d";
        in_files.store_is_named = true;
        auto third = test::need(plan_sleep(ledger, in_files));
        CHECK(third.move.size() == (row.residence == Residence::kept ? 1U : 0U));
        CHECK(third.changes_sleep() == (row.keep != Action::leave));
        CHECK(third.is_empty() == (third.move.empty() && !third.changes_sleep()));
        const auto wake = plan_wake(ledger, {});
        REQUIRE(wake);
        CHECK(wake->is_empty() == (row.wake != WakeAction::restore));
        CHECK(wake->spoiled.size() == (row.wake == WakeAction::refuse ? 1U : 0U));
    }
}

TEST_CASE("Plan: a pause is of the whole program, and takes nothing that is about contents", "[plan]") {
    using Change = void (*)(model::SleepRequest&);
    const Change refused[] = {[](auto& r) { r.tags = {"a"}; },
                              [](auto& r) { r.keep = {"a"}; },
                              [](auto& r) { r.discard = {"a"}; },
                              [](auto& r) { r.require_refill = true; },
                              [](auto& r) { r.gate = model::GateMode::checked; },
                              [](auto& r) { r.store = model::Store::file; },
                              [](auto& r) {
                                  r.stores = {{"a", model::Store::host}};
                              },
                              [](auto& r) { r.directory = "/d"; },
                              [](auto& r) { r.store_is_named = true; },
                              [](auto& r) { r.spill = true; },
                              [](auto& r) { r.keep_files = true; },
                              [](auto& r) { r.copy_all = true; },
                              [](auto& r) { r.check_copies = true; },
                              [](auto& r) { r.raw = true; },
                              [](auto& r) { r.deep = true; }};
    for (const auto& change : refused) {
        INFO(&change - refused);
        auto asked = request(Level::pause);
        change(asked);
        CHECK(model::check_pause(asked).error().code == ErrorCode::invalid_argument);
        asked.level = Level::keep;
        CHECK(model::check_pause(asked));
    }
    auto asked = request(Level::pause);
    asked.on_touch = model::OnTouch::wake;
    asked.gate = model::GateMode::shut;
    asked.dry_run = asked.force = asked.ignore_inhibitors = asked.joint = true;
    CHECK(model::check_pause(asked));
}

TEST_CASE("Plan: what sleeps with preserved parts and cannot be dropped is named", "[plan]") {
    ledger::Ledger ledger;
    auto& backing = add(ledger, k_unit, "weights");
    ledger::Ledger::preserve(backing, {0, 10});
    put(backing, Residence::kept);
    const auto plan = test::need(plan_sleep(ledger, request(Level::drop)));
    CHECK(plan.is_empty());
    CHECK(plan.still_kept == std::vector<std::string>{"weights"});
    CHECK(plan_sleep(ledger, request(Level::keep))->still_kept.empty());
}

TEST_CASE("Plan: damage keeps all of its tag asleep, and no other", "[plan]") {
    ledger::Ledger ledger;
    put(add(ledger, k_unit, "weights"), Residence::kept);
    put(add(ledger, 2 * k_unit, "weights"), Residence::damaged);
    put(add(ledger, 3 * k_unit, "kv_cache"), Residence::dropped);
    const auto plan = test::need(plan_wake(ledger, {}));
    const auto weights = ledger.tag_id("weights");
    CHECK(plan.tags == std::vector{ledger.tag_id("kv_cache")});
    CHECK(plan.devices.at(0).size() == 1);
    REQUIRE(plan.spoiled.size() == 1);
    CHECK(plan.spoiled.at(weights).code == ErrorCode::damaged);
    CHECK(plan_wake(ledger, {{}, {"kv_cache"}})->spoiled.empty());
}

TEST_CASE("Plan: a tag's policy and the command line decide what is kept", "[plan]") {
    const auto keeps = [](Level level, Retention retention) {
        return sleep::keeps_contents(request(level), "t", {retention, false});
    };
    CHECK(keeps(Level::keep, Retention::offload));
    CHECK(keeps(Level::keep, Retention::preserve));
    CHECK_FALSE(keeps(Level::keep, Retention::discard));
    CHECK_FALSE(keeps(Level::drop, Retention::offload));
    CHECK(keeps(Level::drop, Retention::preserve));
    CHECK_FALSE(keeps(Level::drop, Retention::discard));
    auto overridden = request(Level::drop);
    overridden.keep = {"t"};
    CHECK(sleep::keeps_contents(overridden, "t", {Retention::discard, false}));
    overridden = request(Level::keep);
    overridden.discard = {"t"};
    CHECK_FALSE(sleep::keeps_contents(overridden, "t", {Retention::preserve, false}));
    CHECK(sleep::keeps_contents(overridden, "other", {Retention::offload, false}));
}

TEST_CASE("Plan: tags limit a request, unknown and contradictory ones are refused", "[plan]") {
    ledger::Ledger ledger;
    add(ledger, k_unit, "weights");
    add(ledger, 2 * k_unit, "kv_cache");
    auto sleep_request = request(Level::keep);
    sleep_request.tags = {"kv_cache"};
    const auto plan = test::need(plan_sleep(ledger, sleep_request));
    CHECK(plan.tags == std::vector<std::string>{"kv_cache"});
    CHECK(plan.devices.at(0).keep.size() == 1);

    sleep_request.tags = {"cache"};
    CHECK(plan_sleep(ledger, sleep_request).error().code == ErrorCode::unknown_tag);
    sleep_request.ignore_unknown_tags = true;
    CHECK(plan_sleep(ledger, sleep_request)->devices.empty());
    sleep_request.tags = {};
    sleep_request.keep = {"cache"};
    CHECK(plan_sleep(ledger, sleep_request).error().code == ErrorCode::unknown_tag);
    sleep_request.keep = {"weights"};
    sleep_request.discard = {"weights"};
    CHECK(plan_sleep(ledger, sleep_request).error().code == ErrorCode::invalid_argument);
    model::WakeRequest wake_request{{}, {"cache"}};
    CHECK(plan_wake(ledger, wake_request).error().code == ErrorCode::unknown_tag);
    wake_request.ignore_unknown_tags = true;
    CHECK(plan_wake(ledger, wake_request)->devices.empty());
}

TEST_CASE("Plan: what is dropped without a declared refill is named, or refused", "[plan]") {
    ledger::Ledger ledger;
    add(ledger, k_unit, "weights");
    add(ledger, 2 * k_unit, "kv_cache");
    add(ledger, 3 * k_unit, "lora");
    ledger.set_policy(ledger.tag_id("kv_cache"), {Retention::discard, false});
    ledger.set_policy(ledger.tag_id("lora"), {Retention::offload, true});
    auto sleep_request = request(Level::drop);
    const auto plan = test::need(plan_sleep(ledger, sleep_request));
    CHECK(plan.dropped_tags == std::vector<std::string>{"weights", "kv_cache", "lora"});
    CHECK(plan.without_refill == std::vector<std::string>{"weights"});
    sleep_request.require_refill = true;
    CHECK(plan_sleep(ledger, sleep_request).error().code == ErrorCode::no_refill);
    sleep_request.keep = {"weights"};
    CHECK(plan_sleep(ledger, sleep_request));
}

TEST_CASE("Plan: a backing that is preserved whole is not called dropped", "[plan]") {
    ledger::Ledger ledger;
    auto& backing = add(ledger, k_unit, "weights");
    ledger::Ledger::preserve(backing, {0, backing.allocated - 1});
    CHECK(test::need(plan_sleep(ledger, request(Level::drop))).dropped_tags.size() == 1);
    ledger::Ledger::preserve(backing, {0, backing.allocated});
    const auto plan = test::need(plan_sleep(ledger, request(Level::drop)));
    CHECK(plan.tags.size() == 1);
    CHECK(plan.dropped_tags.empty());
    CHECK(plan.without_refill.empty());

    backing.kept = {1, backing.allocated};
    put(backing, Residence::dropped);
    CHECK(plan_wake(ledger, {})->dropped_tags.empty());

    auto& other = add(ledger, 2 * k_unit, "weights");
    other.kept = {2, other.allocated / 2};
    put(other, Residence::dropped);
    CHECK(plan_wake(ledger, {})->dropped_tags.size() == 1);
    other.allocated /= 2; // the rest was freed while it slept, and its owner knows of no drop
    CHECK(plan_wake(ledger, {})->dropped_tags.size() == 1);
}

TEST_CASE("Plan: what still has its memory after an undo that failed needs no more of it", "[plan]") {
    ledger::Ledger ledger;
    auto& on_gpu = add(ledger, k_unit, "weights");
    auto& in_host = add(ledger, 2 * k_unit, "weights");
    in_host.was_host_backed = true;
    for (auto* backing : {&on_gpu, &in_host}) put(*backing, Residence::dropped);
    model::WakeRequest wake;
    wake.live_bytes = 0;
    CHECK(plan_wake(ledger, wake)->needs(0) == on_gpu.bytes);
    CHECK(plan_wake(ledger, wake)->needs_of_host() == in_host.bytes);
    on_gpu.handle = in_host.handle = 1;
    CHECK(plan_wake(ledger, wake)->needs(0) == 0);
    CHECK(plan_wake(ledger, wake)->needs_of_host() == 0);
}

TEST_CASE("Plan: what is in host memory from the start stays, unless it is wanted elsewhere", "[plan]") {
    ledger::Ledger ledger;
    auto& backing = add(ledger, k_unit, "weights");
    add(ledger, 2 * k_unit, "cache");
    backing.host_backed = true;
    const auto plain = request(Level::keep);
    auto deep = plain;
    deep.deep = true;
    auto in_files = plain;
    in_files.store = model::Store::file;
    in_files.directory = "/d";
    in_files.store_is_named = true;
    CHECK(plan_sleep(ledger, plain)->devices.at(0).stay.empty()); // it was moved there
    ledger.set_live_bytes(backing.tag, 1);
    CHECK(plan_sleep(ledger, plain)->devices.at(0).stay.front() == &backing);
    CHECK(plan_sleep(ledger, plain)->dropped_tags.empty());
    for (const auto& elsewhere : {deep, in_files})
        CHECK(plan_sleep(ledger, elsewhere)->devices.at(0).keep.size() == 2);
    ledger::Ledger::move(backing, Residence::kept);
    backing.holds_contents = true;
    CHECK(plan_sleep(ledger, plain)->devices.at(0).keep.size() == 1);
    deep.tags = {"cache"}; // what the driver may not bring back goes, whatever is asked for
    deep.level = Level::drop;
    for (const auto& elsewhere : {deep, in_files}) {
        auto plan = plan_sleep(ledger, elsewhere);
        CHECK(plan->changes_sleep());
        CHECK(plan->awake_tags.size() == 1);
        plan->move_only();
        CHECK_FALSE(plan->changes_sleep());
        CHECK_FALSE(plan->is_empty());
        CHECK(plan->devices.at(0).take_out.front() == &backing);
        CHECK(plan->devices.at(0).keep.empty());
        CHECK(plan->give_up.empty());
    }
    CHECK(plan_sleep(ledger, request(Level::drop))->give_up.front() == &backing);
}

TEST_CASE("Plan: what is damaged and given up is dropped, preserved or not", "[plan]") {
    ledger::Ledger ledger;
    auto& backing = add(ledger, k_unit, "weights");
    ledger::Ledger::preserve(backing, {0, k_unit});
    put(backing, Residence::damaged);
    const auto plan = test::need(plan_sleep(ledger, request(Level::drop)));
    CHECK(plan.give_up.size() == 1);
    CHECK(plan.dropped_tags.size() == 1);
    CHECK(plan.without_refill.size() == 1);
    CHECK(plan.awake_tags.empty());
}

TEST_CASE("Plan: runs join neighbours of one tag and one set of grants", "[plan]") {
    ledger::Ledger ledger;
    std::vector<Backing*> backings;
    for (const std::uint64_t i : {1, 2, 3, 5, 6}) backings.push_back(&add(ledger, i * k_unit, "weights"));
    backings.push_back(&add(ledger, 7 * k_unit, "kv_cache"));
    backings[1]->access |= 2;
    const auto runs = sleep::make_runs(backings);
    std::vector<std::size_t> lengths;
    for (const auto& run : runs) lengths.push_back(run.backings.size());
    CHECK(lengths == std::vector<std::size_t>{1, 1, 1, 2, 1});
    CHECK(runs[3].span().address == 5 * k_unit);
    CHECK(runs[3].span().bytes == 2 * k_unit);
}

TEST_CASE("Plan: a backing that must stay does, at every level and whatever is asked of its tag", "[plan]") {
    ledger::Ledger ledger;
    add(ledger, k_unit, "weights");
    add(ledger, 2 * k_unit, "weights").stay_reason = "shared";
    add(ledger, 3 * k_unit, "cache").stay_reason = "shared";
    for (const auto level : {Level::keep, Level::drop}) {
        auto sleep_request = request(level);
        const auto plan = test::need(plan_sleep(ledger, sleep_request));
        CHECK(plan.tags == std::vector<std::string>{"weights"});
        CHECK(plan.devices.at(0).keep.size() + plan.devices.at(0).drop.size() == 1);
        sleep_request.tags = {"cache"};
        sleep_request.require_refill = true;
        const auto nothing = plan_sleep(ledger, sleep_request);
        REQUIRE(nothing); // the tag is known still, and has nothing to drop
        CHECK(nothing->is_empty());
    }
}

TEST_CASE("Plan: files need a directory that is the same from anywhere", "[plan]") {
    ledger::Ledger ledger;
    add(ledger, k_unit, "weights");
    using Change = void (*)(model::SleepRequest&);
    const std::vector<Change> wants_files = {
        [](model::SleepRequest& r) { r.store = model::Store::file; },
        [](model::SleepRequest& r) {
            r.stores = {{"weights", model::Store::file}};
        },
        [](model::SleepRequest& r) { r.spill = true; },
    };
    for (const auto& want : wants_files) {
        auto wanted = request(Level::keep);
        want(wanted);
        for (const auto& directory : {std::string(), std::string("here"), std::string("/a\0b", 4)}) {
            wanted.directory = directory;
            const auto plan = plan_sleep(ledger, wanted);
            CHECK(test::error_of(plan).code == ErrorCode::invalid_argument);
        }
        wanted.directory = "/somewhere";
        CHECK(plan_sleep(ledger, wanted));
    }
    auto unused = request(Level::keep);
    unused.directory = "here";
    CHECK_FALSE(plan_sleep(ledger, unused)); // it would be looked through
}
