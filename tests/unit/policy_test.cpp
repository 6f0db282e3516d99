// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Ladders, and what follows from the administrator's file and the user's own.

#include "control/policy/pass.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::control;
using namespace gpu_sleep::control::policy;
namespace policy = gpu_sleep::control::policy;
using namespace std::chrono_literals;

namespace {

Ladder ladder(std::initializer_list<const char*> texts) {
    std::vector<Rung> rungs;
    for (const auto* const text : texts) rungs.push_back(*parse_rung(text));
    return test::need(make_ladder(std::move(rungs)));
}

Configuration file(Ladder idle) {
    Configuration file;
    file.reclaim.idle = std::move(idle);
    return file;
}

const Subject k_subject{"alice", "llama", {"python3", "serve.py"}};

model::Report report(model::State state, double idle, double in_state = 0) {
    model::Report report;
    report.state = state;
    report.idle_seconds = idle;
    report.state_seconds = in_state;
    model::TagReport weights;
    weights.tag = "weights";
    weights.bytes = k_gib;
    (state == model::State::awake ? weights.resident : weights.kept) = k_gib;
    report.tags.push_back(weights);
    return report;
}

Holder holder_of(Seen seen) {
    Look look;
    look.seen.push_back(std::move(seen));
    return holders_of(look).front();
}

control::policy::Policy with(Ladder rungs) {
    control::policy::Policy policy;
    policy.ladder = std::move(rungs);
    policy.directory = "/d";
    return policy;
}

} // namespace

TEST_CASE("Ladder: rungs are read, and stand in the order of their times", "[policy]") {
    CHECK(*parse_rung("15m") == Rung{15min, Tier::host});
    CHECK(*parse_rung("1d:deep") == Rung{24h, Tier::deep});
    for (const auto* const text : {"", ":file", "15m:", "15m:hots", "15m:awake", "x:host", "1m:host:file"})
        CHECK_FALSE(parse_rung(text));
    CHECK(ladder({"4h:file", "15m"}) == Ladder{{15min, Tier::host}, {4h, Tier::file}});
    CHECK(make_ladder({{1min, Tier::host}, {1min, Tier::file}}).error().message ==
          "two steps have the same time, 1m");
    CHECK(make_ladder({{1min, Tier::file}, {2min, Tier::host}}).error().message ==
          "'host' after 2m must be deeper than 'file'");
}

TEST_CASE("Ladder: what is reached at a time is the lowest rung so far", "[policy]") {
    const auto rungs = ladder({"10s:host", "20s:file"});
    CHECK_FALSE(rung_at(rungs, 9.9));
    CHECK(rung_at(rungs, 10)->tier == Tier::host);
    CHECK(rung_at(rungs, 1e6)->tier == Tier::file);
    CHECK_FALSE(rung_at({}, 1e6));
    CHECK(policy::to_text(rungs) == "10s host, 20s file");
    CHECK(policy::to_text(Ladder{}) == "never");
}

TEST_CASE("Merge: at every time the deeper of two ladders holds", "[policy]") {
    const std::vector<Ladder> all{{},
                                  ladder({"1m"}),
                                  ladder({"2m"}),
                                  ladder({"1m:file"}),
                                  ladder({"2m:host", "3m:file"}),
                                  ladder({"1m:host", "5m:file", "9m:deep"}),
                                  ladder({"3m:deep"})};
    const auto depth_at = [](const Ladder& rungs, double seconds) {
        const auto rung = rung_at(rungs, seconds);
        return rung ? rung->tier : Tier::awake;
    };
    for (const auto& one : all)
        for (const auto& other : all) {
            const auto merged = deeper_of(one, other);
            CHECK(make_ladder(merged)); // it is one
            for (double seconds = 0; seconds < 700; seconds += 30)
                CHECK(depth_at(merged, seconds) ==
                      std::max(depth_at(one, seconds), depth_at(other, seconds)));
        }
}

TEST_CASE("Merge: a user's file loosens nothing that the administrator's says", "[policy]") {
    auto limits = file(ladder({"15m:host", "4h:file"}));
    limits.reclaim.directory = "/data/{user}";
    limits.user_budget = 8 * k_gib;
    limits.tags["weights"].store = model::Store::file;
    auto wishes = file(ladder({"1d"}));
    wishes.reclaim.min_awake = 100h;
    wishes.reclaim.directory = "/nonexistent";
    wishes.user_budget = 100 * k_gib;
    wishes.tags["weights"] = {model::Store::host, true};
    const auto merge_both = [&] { return merge(policy_of(limits, k_subject), policy_of(wishes, k_subject)); };
    const auto check_kept = [&] {
        const auto policy = merge_both();
        CHECK(policy.ladder == *limits.reclaim.idle);
        CHECK(policy.min_awake.value_or(0ms) == 0ms);
        CHECK(policy.directory == "/data/alice");
        CHECK(policy.host_budget == 8 * k_gib);
        CHECK(policy.tags.at("weights").store == model::Store::file);
        CHECK_FALSE(policy.tags.at("weights").exempt.value_or(false));
    };
    check_kept();
    wishes.reclaim.exempt = true;
    check_kept();
    wishes.commands["llama"].exempt = true;
    wishes.commands["python3"].idle = Ladder{};
    check_kept();
    wishes.reclaim.exempt.reset();
    wishes.commands.clear();

    limits.reclaim.min_awake = 2min;
    CHECK(merge_both().min_awake == 2min);
    wishes.reclaim.min_awake = 1min;
    CHECK(merge_both().min_awake == 1min);
    wishes.reclaim.idle = ladder({"5m:host", "1h:file"});
    CHECK(merge_both().ladder == *wishes.reclaim.idle); // to go down earlier is the user's to choose
    wishes.user_budget = 4 * k_gib;
    CHECK(merge_both().host_budget == 4 * k_gib);
}

TEST_CASE("Merge: where the administrator says nothing, the user's file holds", "[policy]") {
    auto wishes = file(ladder({"5m:file"}));
    wishes.reclaim.directory = "/home/alice/sleep";
    wishes.reclaim.min_awake = 1min;
    wishes.tags["weights"].exempt = true;
    const auto policy = merge(policy_of({}, k_subject), policy_of(wishes, k_subject));
    CHECK(policy.ladder == *wishes.reclaim.idle);
    CHECK(policy.directory == "/home/alice/sleep");
    CHECK(policy.min_awake == 1min);
    CHECK(policy.tags.at("weights").exempt == true);
    Configuration limits;
    limits.reclaim.min_awake = 2min;
    CHECK(merge(policy_of(limits, k_subject), policy_of(wishes, k_subject)).min_awake == 1min);
    CHECK(merge(policy_of(limits, k_subject), policy_of({}, k_subject)).min_awake == 2min);
    limits.commands["llama"].exempt = true; // the administrator lets it be: the user need not
    CHECK(merge(policy_of(limits, k_subject), policy_of(wishes, k_subject)).ladder == *wishes.reclaim.idle);
}

TEST_CASE("Policy: what is said of a user or a command goes before what is said of all", "[policy]") {
    auto limits = file(ladder({"15m"}));
    limits.users["alice"].idle = ladder({"30m"});
    CHECK(policy_of(limits, {"bob", "", {"python3", ""}}).ladder == ladder({"15m"}));
    CHECK(policy_of(limits, k_subject).ladder == ladder({"30m"}));
    limits.commands["python3"].idle = ladder({"45m"});
    CHECK(policy_of(limits, k_subject).ladder == ladder({"45m"}));
    limits.commands["llama"].exempt = true;
    CHECK(policy_of(limits, k_subject).ladder.empty());
    limits.commands["llama"] = {};
    limits.reclaim.exempt = true; // all, but for those of whom it is said when
    CHECK(policy_of(limits, k_subject).ladder == ladder({"45m"}));
    CHECK(policy_of(limits, {"bob", "", {"sh", ""}}).ladder.empty());
    limits.users["alice"].host_budget = k_gib;
    limits.user_budget = 2 * k_gib;
    CHECK(policy_of(limits, k_subject).host_budget == k_gib);
    CHECK(policy_of(limits, {"bob", "", {"sh", ""}}).host_budget == 2 * k_gib);
}

TEST_CASE("Policy: an administrator's exemption of a user goes before commands and own files", "[policy]") {
    auto limits = file(ladder({"15m"}));
    limits.name = "/a.toml";
    limits.commands["python3"].idle = ladder({"1h"});
    limits.commands["llama"].exempt = false;
    limits.commands["llama"].min_awake = 3min;
    limits.users["alice"].exempt = true;
    auto wishes = file(ladder({"5m"}));
    wishes.name = "/w.toml";
    const auto policy = merge(policy_of(limits, k_subject), policy_of(wishes, k_subject));
    CHECK(policy.ladder.empty());
    const std::string by = "user.alice.exempt of /a.toml";
    CHECK(decide(policy, report(model::State::awake, 7200))->reason == "it is exempt by " + by);
    CHECK(policy.min_awake == 3min); // of commands, all the rest holds
    using Lines = std::vector<std::string>;
    CHECK(policy.grounds.overridden == Lines{"reclaim.idle of /a.toml, by command.python3.idle of /a.toml",
                                             "command.llama.exempt of /a.toml, by " + by,
                                             "command.python3.idle of /a.toml, by " + by,
                                             "reclaim.idle of /w.toml, by " + by});
    const auto bob = merge(policy_of(limits, {"bob", "", {"python3", ""}}), policy_of({}, k_subject));
    CHECK(bob.ladder == ladder({"1h"}));
}

TEST_CASE("Policy: each setting that another overrides is named with the other", "[policy]") {
    auto limits = file({});
    auto wishes = file({});
    limits.name = "/a.toml";
    wishes.name = "/w.toml";
    const auto overridden = [&] {
        return merge(policy_of(limits, k_subject), policy_of(wishes, k_subject)).grounds.overridden;
    };
    using Lines = std::vector<std::string>;
    limits.reclaim = {};
    wishes.reclaim = {};
    CHECK(overridden().empty());
    SECTION("within a file") {
        limits.reclaim.exempt = true;
        limits.commands["llama"].idle = ladder({"1h"});
        CHECK(overridden() == Lines{"reclaim.exempt of /a.toml, by command.llama.idle of /a.toml"});
        const Subject no_script{"bob", "llama", {"llama", ""}}; // one section by three names
        CHECK(policy_of(limits, no_script).grounds.overridden == overridden());
        limits.commands["llama"].exempt = true;
        CHECK(overridden() == Lines{"reclaim.exempt of /a.toml, by command.llama.exempt of /a.toml",
                                    "command.llama.idle of /a.toml, by command.llama.exempt of /a.toml"});
        limits.commands["llama"].exempt = false;
        CHECK(overridden() == Lines{"reclaim.exempt of /a.toml, by command.llama.exempt of /a.toml"});
        limits = {};
        limits.name = "/a.toml";
        limits.user_budget = k_gib;
        limits.users["alice"].host_budget = 2 * k_gib;
        limits.reclaim.directory = "/a";
        limits.users["alice"].directory = "/b";
        CHECK(overridden() == Lines{"reclaim.directory of /a.toml, by user.alice.directory of /a.toml",
                                    "host.per-user of /a.toml, by user.alice.host-budget of /a.toml"});
    }
    SECTION("of the user's file by the administrator's") {
        limits.reclaim.idle = ladder({"15m"});
        wishes.commands["llama"].exempt = true;
        wishes.reclaim.min_awake = 1h;
        CHECK(overridden() == Lines{"command.llama.exempt of /w.toml, by reclaim.idle of /a.toml",
                                    "reclaim.min-awake of /w.toml, by reclaim.idle of /a.toml"});
        wishes = file(ladder({"1d"}));
        wishes.name = "/w.toml";
        limits.reclaim.directory = "/a";
        wishes.reclaim.directory = "/w";
        limits.reclaim.spill = true;
        wishes.reclaim.spill = false;
        limits.user_budget = k_gib;
        wishes.user_budget = 2 * k_gib;
        limits.reclaim.min_awake = 1min;
        wishes.reclaim.min_awake = 2min;
        CHECK(overridden() == Lines{"reclaim.idle of /w.toml, by reclaim.idle of /a.toml",
                                    "reclaim.min-awake of /w.toml, by reclaim.min-awake of /a.toml",
                                    "reclaim.directory of /w.toml, by reclaim.directory of /a.toml",
                                    "reclaim.spill of /w.toml, by reclaim.spill of /a.toml",
                                    "host.per-user of /w.toml, by host.per-user of /a.toml"});
    }
    SECTION("of the administrator's by the user's file") {
        limits.reclaim.exempt = true;
        wishes.reclaim.idle = ladder({"15m"});
        CHECK(overridden() == Lines{"reclaim.exempt of /a.toml, by reclaim.idle of /w.toml"});
        limits = file(ladder({"15m", "1h:file"}));
        limits.name = "/a.toml";
        wishes.reclaim.idle = ladder({"5m"});
        CHECK(overridden().empty()); // both hold
    }
}

TEST_CASE("Policy: a command is called by program, script, both, or name, each before the last", "[policy]") {
    Configuration limits;
    const auto add = [&](const std::string& command, const char* idle) {
        limits.commands[command].idle = ladder({idle});
        return policy_of(limits, k_subject).ladder == ladder({idle});
    };
    CHECK_FALSE(add("serve", "1m"));
    CHECK(add("python3", "2m"));
    CHECK(add("serve.py", "3m"));
    CHECK(add("python3 serve.py", "4m"));
    CHECK(add("llama", "5m"));
    CHECK(policy_of(limits, {"bob", "", {"python3", "serve.py"}}).ladder == ladder({"4m"}));
    CHECK(policy_of(limits, {"bob", "", {"sh", "serve.py"}}).ladder == ladder({"3m"}));
    CHECK(policy_of(limits, {"bob", "", {"python3", "other.py"}}).ladder == ladder({"2m"}));
    CHECK(policy_of(limits, {"bob", "", {"serve.py", ""}}).ladder == ladder({"3m"}));
    limits.commands["trainer:"].idle = ladder({"6m"});
    Process titled;
    titled.program = program_name({"trainer: epoch 1"});
    CHECK(policy_of(limits, {"bob", "", program_of(titled)}).ladder == ladder({"6m"}));
}

TEST_CASE("Decision: what is idle sleeps, and what sleeps moves further down", "[policy]") {
    const auto policy = with(ladder({"10s:host", "20s:file"}));
    using model::State;
    CHECK(decide(policy, report(State::awake, 9))->reason ==
          "it has been idle for only 9.00 s, and may sleep in 1.00 s");
    CHECK(decide(policy, report(State::awake, 0))->reason == "it is not idle");
    const auto sleep = decide(policy, report(State::awake, 10))->request;
    REQUIRE(sleep);
    CHECK(sleep->only_if_idle == 10s);
    CHECK(sleep->sleep.on_touch == model::OnTouch::wake);
    CHECK_FALSE(sleep->sleep.store_is_named);
    CHECK(decide(policy, report(State::paused, 10))->request); // like one that is idle
    CHECK(sleep->sleep.directory.empty());
    for (const double unused : {0, 9, 12}) // also by hand, before any rung
        CHECK(decide(policy, report(State::asleep, unused, 2))->reason == "it is already asleep");
    const auto move = test::need(decide(policy, report(State::asleep, 20, 5))->request);
    CHECK(move.sleep.store_is_named);
    CHECK(move.sleep.store == model::Store::file);
    CHECK(move.sleep.directory == "/d");
    CHECK(move.only_if_idle == 20s);
    CHECK_FALSE(move.sleep.on_touch); // as it is
    auto sleeper = report(State::asleep, 0, 25);
    sleeper.idle_seconds.reset();
    CHECK(decide(policy, sleeper)->request); // time asleep counts
    sleeper.waiting = 1;
    CHECK_FALSE(decide(policy, sleeper)->request);
    sleeper.waiting = 0;
    sleeper.tags[0].in_files = sleeper.tags[0].kept;
    CHECK(decide(policy, sleeper)->reason == "it is already asleep");
}

TEST_CASE("Decision: exempt tags stay, and a process that has just woken is left alone", "[policy]") {
    auto policy = with(ladder({"10s"}));
    policy.tags["cache"].exempt = true;
    policy.tags["weights"].store = model::Store::file;
    policy.tags["other"].store = model::Store::file; // which the process does not have
    auto seen = report(model::State::awake, 100, 5);
    seen.tags.push_back(seen.tags.front());
    seen.tags.back().tag = "cache";
    auto request = decide(policy, seen)->request;
    REQUIRE(request);
    CHECK(request->sleep.tags == std::vector<std::string>{"weights"});
    CHECK(request->sleep.stores == std::vector<model::TagStore>{{"weights", model::Store::file}});
    CHECK(request->sleep.directory == "/d");
    policy.tags["weights"].exempt = true;
    CHECK(decide(policy, seen)->reason == "all of its tags are exempt");
    policy.tags.clear();
    policy.min_awake = 6s;
    CHECK(decide(policy, seen)->reason == "it has been awake for only 5.00 s, and may sleep in 1.00 s");
    seen.state = model::State::paused; // 5 s ago, and awake before
    CHECK(decide(policy, seen)->request);
    seen.seconds_since_wake = 5.5;
    CHECK(decide(policy, seen)->reason == "it has been awake for only 5.50 s, and may sleep in 0.50 s");
    seen.state = model::State::awake;
    CHECK(decide(with({}), seen)->reason == "no policy puts it to sleep");
    Configuration exempt;
    exempt.name = "/c.toml";
    exempt.reclaim.exempt = true;
    const auto reason = [&](const Configuration& limits, const Configuration& wishes) {
        return decide(merge(policy_of(limits, k_subject), policy_of(wishes, k_subject)), seen)->reason;
    };
    CHECK(reason({}, exempt) == "it is exempt by reclaim.exempt of /c.toml");
    exempt.commands["llama"].exempt = true;
    CHECK(reason(exempt, {}) == "it is exempt by command.llama.exempt of /c.toml");
}

TEST_CASE("Decision: a ladder that leads to files is an error where no file names a directory", "[policy]") {
    auto limits = file(ladder({"10s", "20s:file"}));
    limits.users["bob"].directory = "/data/bob";
    auto wishes = file(ladder({"1h"}));
    const auto decision = [&] {
        return decide(merge(policy_of(limits, k_subject), policy_of(wishes, k_subject)),
                      report(model::State::awake, 10));
    };
    CHECK(decision().error().message == k_directory_missing); // before it gets there
    wishes.reclaim.directory = "/home/alice/sleep";
    CHECK(decision()->request);
}

TEST_CASE("Decision: a sleep that makes room goes where the policy says, unless it says itself", "[policy]") {
    auto policy = with(ladder({"10s:file"}));
    policy.min_awake = 1min;
    policy.tags["weights"].exempt = true;
    const auto seen = report(model::State::awake, 0);
    const auto heeding = [&](model::SleepRequest request = {}) {
        return heed(policy, seen, request), request;
    };
    CHECK(heeding().min_awake == 1min);
    CHECK(heeding().store == model::Store::file);
    CHECK(heeding().directory == "/d");
    CHECK(heeding().tags.empty());
    model::SleepRequest own;
    own.min_awake = 0ms;
    own.store = model::Store::file;
    own.directory = "/own";
    CHECK(heeding(own).min_awake == 0ms);
    CHECK(heeding(own).directory == "/own");
    policy.ladder = ladder({"10s"});
    policy.spill = true;
    CHECK(heeding().spill);
    CHECK(heeding().store == model::Store::host);
    policy.directory.clear();
    CHECK_FALSE(heeding().spill);
}

TEST_CASE("Decision: the last rung leaves nothing on the GPU, and takes all of a process", "[policy]") {
    using model::State;
    auto policy = with(ladder({"10s:host", "20s:deep"}));
    CHECK_FALSE(decide(policy, report(State::awake, 10))->request->sleep.deep);
    for (const auto& seen : {report(State::awake, 20), report(State::asleep, 20, 5)}) {
        const auto request = test::need(decide(policy, seen)->request);
        CHECK(request.sleep.deep);
        CHECK(request.only_if_idle == 20s);
        CHECK(request.sleep.store == model::Store::file);
        CHECK(request.sleep.directory == "/d");
        CHECK(request.sleep.tags.empty());
        CHECK(request.sleep.on_touch.has_value() == (seen.state == State::awake));
    }
    auto sleeper = report(State::asleep, 20, 5);
    sleeper.tags[0].in_files = sleeper.tags[0].kept;
    CHECK(tier_of(sleeper) == Tier::file);
    CHECK(decide(policy, sleeper)->request->sleep.deep); // from files, too
    sleeper.deep = true;
    CHECK(tier_of(sleeper) == Tier::deep);
    CHECK(decide(policy, sleeper)->reason == "it is already asleep");
    policy.tags["weights"].exempt = true;
    auto seen = report(State::awake, 20);
    seen.tags.push_back(seen.tags.front());
    seen.tags.back().tag = "cache";
    const auto part = test::need(decide(policy, seen)->request);
    CHECK_FALSE(part.sleep.deep); // only all of a process sleeps deeply
    CHECK(part.sleep.store == model::Store::file);
    CHECK(part.sleep.tags == std::vector<std::string>{"cache"});
    seen = report(State::asleep, 20, 5);
    seen.tags.push_back(seen.tags.front());
    seen.tags.back().tag = "cache";
    CHECK(decide(policy, seen)->request);
    for (auto& tag : seen.tags) tag.in_files = tag.kept;
    CHECK(decide(policy, seen)->reason == "it is already asleep, except for exempt tags");
    policy.tags.clear();
    seen.deep_refusal = "it has managed memory";
    CHECK(decide(policy, seen)->reason ==
          "it is already asleep, and cannot sleep deeply: it has managed memory");
    for (auto& tag : seen.tags) tag.in_files = 0;
    REQUIRE(decide(policy, seen)->request);
    CHECK_FALSE(decide(policy, seen)->request->sleep.deep);
    CHECK(decide(policy, seen)->request->sleep.store == model::Store::file);
    policy.directory.clear();
    const auto request = test::need(decide(policy, report(State::awake, 20))->request);
    CHECK(request.sleep.deep);
    CHECK(request.sleep.store == model::Store::host); // for want of a directory
    CHECK_FALSE(request.sleep.store_is_named);
}

TEST_CASE("Look: what a sleep puts into host memory is also a copy of what runs from there", "[policy]") {
    auto runs = report(model::State::awake, 60);
    runs.tags[0].host_backed = 2 * runs.tags[0].resident;
    const auto policy = with(ladder({"10s:host"}));
    CHECK(holder_of({{}, runs, policy, *decide(policy, runs)}).incoming == 3 * k_gib);
}

TEST_CASE("Look: what sleeps can move to files while host memory has any of it, also deep", "[policy]") {
    auto sleeper = report(model::State::asleep, 0, 50);
    sleeper.deep = GENERATE(false, true);
    const auto holder = [&] { return holder_of({{}, sleeper, with({}), {}}); };
    CHECK(holder().can_move);
    CHECK(holder().unused_seconds == 50);
    sleeper.tags[0].in_files = k_gib;
    CHECK_FALSE(holder().can_move);
    CHECK_FALSE(holder_of({{}, report(model::State::awake, 0), with({}), {}}).can_move);
}

TEST_CASE("Look: what sleeps in the host memory that it runs from is counted once", "[policy]") {
    auto runs = report(model::State::awake, 60);
    runs.tags[0].host_backed = std::exchange(runs.tags[0].resident, 0);
    const auto policy = with(ladder({"10s:host"}));
    const auto holder = [&] { return holder_of({{}, runs, policy, *decide(policy, runs)}); };
    CHECK(holder().held == k_gib);
    CHECK(holder().incoming == k_gib); // its copy
    runs.tags[0].in_place = k_gib;
    CHECK(holder().held == k_gib);
    CHECK(holder().incoming == 0);
    auto deep = with(ladder({"10s:deep"}));
    deep.directory.clear(); // or it goes to files
    const auto incoming = [&] { return holder_of({{}, runs, deep, *decide(deep, runs)}).incoming; };
    CHECK(incoming() == k_gib);
    runs = report(model::State::asleep, 60, 60);
    runs.tags[0].in_place = k_gib;
    CHECK(incoming() == k_gib);
}
