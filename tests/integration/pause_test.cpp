// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Programs that are paused (level 0): their work waits, and their memory stays on the GPU.

#include "support/host.hpp"

using namespace gpu_sleep::test;

namespace {

Output pause_it(const Host& host, Arguments options = {}) {
    return host.command("gpu-sleep", with(std::move(options), {"--level", "0", "--json"}));
}

/// Sends work, which the gate must hold.
void send_held_work(Host& host) {
    host.process().send("spin 1");
    REQUIRE(host.waits_at_the_gate());
}

} // namespace

TEST_CASE("Pause: work waits until a wake of any tag, and no memory moves", "[quick][pause]") {
    LoadedHost host(captured());
    host.tell("alloc cache 4194304 0");
    host.tell("callback count");
    const auto rehearsed = ended(pause_it(host, {"--dry-run"}));
    CHECK(host.state() == "awake");
    const auto begun = Clock::now();
    host.tell("spin 1000");
    const auto paused = ended(pause_it(host));
    CHECK(seconds_since(begun) >= 1); // what ran has ended
    CHECK(paused.json("/processes/0/report/level") == "0");
    CHECK(paused.json("/processes/0/report/changed") == "true");
    CHECK(paused.json("/processes/0/report/devices") == "[]"); // 0 bytes
    CHECK(host.state() == "paused");
    CHECK(host.report("gate/state tags/0/state") == "shut awake");
    CHECK_THAT(host.command("gpu-ps").out, mentions("paused"));
    CHECK(pause_it(host).json("/processes/0/report/changed") == "false");
    CHECK(host.tell("asleep") == "0");
    send_held_work(host);
    CHECK(host.command("gpu-wake", {"--dry-run"}).status == 0);
    CHECK(host.state() == "paused");
    CHECK(host.command("gpu-wake", {"--tags", "unknown"}).status == 2);
    CHECK(host.state() == "paused");
    const auto woken = host.command("gpu-wake", {"--tags", "cache", "--json"});
    CHECK(woken.json("/processes/0/report/changed /processes/0/report/devices") == "true []");
    CHECK(host.process().read_line() == "ok ");
    CHECK(host.state() == "awake");
    CHECK(host.report("gate/state") == "open");
    CHECK(host.tell("calls") == "0 0 0 0"); // callbacks hear of sleeps alone
    host.check_unharmed();
}

TEST_CASE("Pause: it holds beside what sleeps of the program, and its end leaves that asleep", "[pause]") {
    LoadedHost host(captured());
    host.tell("alloc cache 4194304 0");
    REQUIRE(host.command("gpu-sleep", {"--tags", "cache", "--gate", "checked"}).status == 0);
    CHECK(host.report("gate/state") == "checked");
    CHECK_THAT(host.command("gpu-sleep", {"--level", "0"}).out, mentions("is paused as well"));
    CHECK(pause_it(host).json("/processes/0/report/changed") == "false");
    CHECK_THAT(host.command("gpu-wake", {"--tags", "weights", "--dry-run"}).out,
               mentions("its pause would end"));
    CHECK(host.state() == "partial");
    CHECK(host.report("gate/state") == "shut");
    host.tell("free 1"); // nothing sleeps any more
    CHECK(host.state() == "paused");
    send_held_work(host);
    REQUIRE(host.command("gpu-wake").status == 0);
    CHECK(host.process().read_line() == "ok ");
    host.tell("alloc cache 4194304 0");
    REQUIRE(pause_it(host).status == 0);
    REQUIRE(host.command("gpu-sleep", {"--tags", "cache", "--gate", "checked"}).status == 0);
    CHECK(host.report("gate/state") == "shut"); // the pause goes on
    REQUIRE(host.command("gpu-wake", {"--tags", "weights"}).status == 0);
    CHECK(host.state() == "partial");
    CHECK(host.report("gate/state") == "checked");
    REQUIRE(host.command("gpu-sleep", {"--gate", "checked"}).status == 0);
    REQUIRE(pause_it(host).status == 0);
    CHECK(host.report("gate/state") == "shut");
    REQUIRE(host.command("gpu-wake").status == 0);
    host.check_unharmed();
}

TEST_CASE("Pause: it is refused where work cannot be held back", "[pause]") {
    LoadedHost alone;
    const auto refused = ended(pause_it(alone), 1);
    CHECK_THAT(refused.json("/processes/0/error/message"), mentions("gpu-run"));
    for (const Arguments& option :
         {Arguments{"--on-touch", "wake"}, {"--gate", "checked"}, {"--touch-limit", "5s"}}) {
        const auto slept = ended(alone.command("gpu-sleep", with(option, {"--json"})), 1);
        CHECK(slept.json("/processes/0/error/code") == "refused");
        CHECK_THAT(slept.err, mentions(option[0] + ": its calls to the driver are not intercepted"));
    }
    CHECK(alone.state() == "awake");
    // A plain sleep says so, too, unless a callback may see to it that the program keeps from its memory.
    const auto warned = mentions("its calls to the driver are not intercepted");
    CHECK_THAT(alone.report("notes"), warned);
    CHECK_THAT(alone.command("gpu-sleep").out, warned);
    CHECK_THAT(alone.command("gpu-sleep").out, !warned); // it sleeps already
    REQUIRE(alone.command("gpu-wake").status == 0);
    alone.tell("callback obey");
    CHECK_THAT(alone.command("gpu-sleep").out, !warned);
    CHECK_THAT(alone.report("notes"), !warned);
}

TEST_CASE("Pause: the first use ends it, or fails, if that was asked for", "[pause]") {
    LoadedHost host(captured());
    REQUIRE(pause_it(host, {"--on-touch", "fail"}).status == 0);
    CHECK(host.ask("spin 1").starts_with("error"));
    CHECK(pause_it(host, {"--on-touch", "wake"}).json("/processes/0/report/changed") == "true");
    CHECK(host.report("transitions/0/done") == "1"); // the second set only how touches are met
    host.tell("spin 1");
    CHECK(host.state() == "awake");
    host.tell("sleep 0"); // the program itself
    CHECK(host.state() == "paused");
    host.tell("wake");
    CHECK(host.state() == "awake");
    host.check_unharmed();
}

TEST_CASE("Pause: an idle timer puts a paused program to sleep, whose work waits on", "[pause]") {
    LoadedHost host(captured({"GPU_SLEEP_IDLE=1000"}));
    host.tell("spin 1");
    REQUIRE(pause_it(host).status == 0);
    REQUIRE(becomes_true([&] { return host.state() == "asleep"; }));
    send_held_work(host);
    pause_for(Milliseconds(200));
    CHECK(host.state() == "asleep");
    REQUIRE(host.command("gpu-wake").status == 0);
    CHECK(host.process().read_line() == "ok ");
    host.check_unharmed();
}

TEST_CASE("Pause: a paused program that is stopped says so, and does not go on by itself", "[pause]") {
    LoadedHost host(captured({"GPU_SLEEP_ON_STOP=sleep"}));
    REQUIRE(pause_it(host).status == 0);
    host.process().signal(SIGSTOP);
    CHECK(becomes_true(
        [&] { return host.command("gpu-ps").out.find("stopped, paused") != std::string::npos; }));
    host.process().signal(SIGCONT);
    CHECK(becomes_true([&] { return host.state() == "paused"; }));
    REQUIRE(host.command("gpu-wake").status == 0);
    host.check_unharmed();
}

TEST_CASE("Pause: it lasts through a stop, whatever else sleeps, with its answer to a touch", "[pause]") {
    LoadedHost host(captured({"GPU_SLEEP_ON_STOP=sleep"}));
    host.tell("alloc cache 4194304 0");
    const auto stop_and_continue = [&] {
        host.process().signal(SIGTSTP);
        CHECK(becomes_true(
            [&] { return host.command("gpu-ps").out.find("stopped, asleep") != std::string::npos; }));
        host.process().signal(SIGCONT);
        pause_for(Milliseconds(200)); // time enough to wake
        CHECK(host.state() == "asleep");
    };
    REQUIRE(host.command("gpu-sleep", {"--tags", "cache"}).status == 0);
    REQUIRE(pause_it(host).status == 0);
    stop_and_continue();
    REQUIRE(host.command("gpu-wake").status == 0);
    REQUIRE(pause_it(host, {"--on-touch", "wake"}).status == 0);
    stop_and_continue();
    CHECK(host.report("gate/on_touch") == "wake");
    host.tell("spin 1");
    CHECK(host.state() == "awake");
    host.check_unharmed();
}
