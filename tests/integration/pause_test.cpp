// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Programs that are paused (level 0): their work waits, and their memory stays on the GPU.

#include "support/catch.hpp"
#include "support/host.hpp"

#include <fmt/format.h>

#include <sys/syscall.h>

#include <cerrno>
#include <csignal>
#include <string>

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

constexpr const char* k_error_code = "/processes/0/error/code";

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
    const auto rehearsed = pause_it(host, {"--dry-run"});
    CHECK(rehearsed.status == 0);
    CHECK(host.state() == "awake");
    const auto begun = Clock::now();
    host.tell("spin 1000");
    const auto paused = pause_it(host);
    REQUIRE(paused.status == 0);
    CHECK(seconds_since(begun) >= 1); // what ran has ended
    CHECK(paused.json("/processes/0/report/level") == "0");
    CHECK(paused.json("/processes/0/report/changed") == "true");
    CHECK(paused.json("/processes/0/report/devices") == "[]"); // 0 bytes
    CHECK(host.state() == "paused");
    CHECK(host.report("gate/state") == "shut");
    CHECK(host.report("tags/0/state") == "awake");
    CHECK_THAT(host.command("gpu-ps").out, mentions("paused"));
    CHECK(pause_it(host).json("/processes/0/report/changed") == "false");
    CHECK(host.tell("asleep") == "0");
    send_held_work(host);
    CHECK(host.command("gpu-wake", {"--dry-run"}).status == 0);
    CHECK(host.state() == "paused");
    CHECK(host.command("gpu-wake", {"--tags", "unknown"}).status == 2);
    CHECK(host.state() == "paused");
    const auto woken = host.command("gpu-wake", {"--tags", "cache", "--json"});
    CHECK(woken.json("/processes/0/report/changed") == "true");
    CHECK(woken.json("/processes/0/report/devices") == "[]");
    CHECK(host.process().read_line() == "ok ");
    CHECK(host.state() == "awake");
    CHECK(host.report("gate/state") == "open");
    CHECK(host.tell("calls") == "0 0 0 0"); // callbacks hear of sleeps alone
    host.check_unharmed();
}

TEST_CASE("Pause: a sleep takes a paused program on to asleep, or leaves it paused", "[pause]") {
    LoadedHost host(captured());
    host.tell("alloc cache 4194304 0");
    REQUIRE(pause_it(host).status == 0);
    host.tell("fail cuMemUnmap 1 999");
    const auto failed = host.command("gpu-sleep", {"--json"});
    CHECK(failed.status == 1);
    CHECK(failed.json("/processes/0/state") == "paused");
    CHECK(host.state() == "paused");
    CHECK(host.report("gate/state") == "shut");
    REQUIRE(host.command("gpu-sleep").status == 0);
    CHECK(host.state() == "asleep");
    const auto again = pause_it(host);
    CHECK(again.status == 0);
    CHECK(again.json("/processes/0/report/changed") == "false");
    CHECK(again.json("/processes/0/state") == "asleep");
    REQUIRE(host.command("gpu-wake").status == 0);
    CHECK(host.state() == "awake");
    CHECK(host.report("gate/state") == "open");
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

TEST_CASE("Pause: it is refused as a sleep is, and where work cannot be held back", "[pause]") {
    LoadedHost host(captured());
    CHECK(pause_it(host, {"--tags", "weights"}).status == 2);
    CHECK(host.ask("sleep 0 weights").starts_with("error")); // by the program itself
    host.tell("inhibit");
    CHECK(pause_it(host).json(k_error_code) == "inhibited");
    CHECK(pause_it(host, {"--dry-run"}).status == 1);
    host.tell("uninhibit");
    host.tell("hold");
    const auto held = pause_it(host, {"--timeout", "200ms"});
    CHECK(held.status == 4);
    CHECK_THAT(held.json("/processes/0/error/message"), mentions("gpu_sleep_hold"));
    CHECK(host.state() == "awake");
    host.tell("resume");
    host.tell("sleep 0");
    CHECK(host.state() == "paused");
    host.tell("wake");
    CHECK(host.state() == "awake");
    LoadedHost alone;
    const auto refused = pause_it(alone);
    CHECK(refused.status == 1);
    CHECK_THAT(refused.json("/processes/0/error/message"), mentions("gpu-run"));
    for (const Arguments& option :
         {Arguments{"--on-touch", "wake"}, {"--gate", "checked"}, {"--touch-limit", "5s"}}) {
        const auto slept = alone.command("gpu-sleep", with(option, {"--json"}));
        CHECK(slept.status == 1);
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
    host.check_unharmed();
}

TEST_CASE("Pause: whichever call of the driver fails, or the gate, the program goes on", "[pause]") {
    LoadedHost host(captured());
    int failed = 0;
    for (int call = 1; call <= 12; ++call) {
        INFO(call);
        host.tell(fmt::format("fail * {} 999", call));
        const auto paused = pause_it(host);
        const bool is_paused = paused.status == 0;
        failed += is_paused ? 0 : 1;
        CHECK(host.state() == (is_paused ? "paused" : "awake"));
        CHECK(host.report("gate/state") == (is_paused ? "shut" : "open"));
        if (!is_paused) continue;
        REQUIRE(host.command("gpu-wake").status == 0);
        static_cast<void>(host.ask("spin 0")); // makes more calls than are left until one fails
    }
    CHECK(failed >= 2);
    host.check_unharmed();
    host.tell(fmt::format("forbid {} {}", SYS_membarrier, EPERM));
    CHECK(pause_it(host).status == 1);
    CHECK(host.state() == "awake");
    host.tell("spin 1");
}

TEST_CASE("Pause: several are paused as one, or none", "[pause]") {
    Host first(captured({"GPU_SLEEP_GROUP=pair"}));
    Host second(captured({"GPU_SLEEP_GROUP=pair"}));
    for (auto* host : {&first, &second}) host->tell("alloc weights 4194304 0");
    const auto together = [](Arguments command) {
        command.front() = command_file(command.front());
        return run({with(std::move(command), {"--group", "pair"})});
    };
    second.tell("inhibit");
    const auto refused = together({"gpu-sleep", "--level", "0"});
    CHECK(refused.status == 1);
    CHECK_THAT(refused.err, mentions("none of 2 processes was paused"));
    for (auto* host : {&first, &second}) CHECK(host->state() == "awake");
    second.tell("uninhibit");
    const auto paused = together({"gpu-sleep", "--level", "0"});
    CHECK(paused.status == 0);
    CHECK_THAT(paused.out, mentions("2 processes are paused"));
    REQUIRE(second.command("gpu-sleep").status == 0);
    CHECK_THAT(together({"gpu-sleep", "--level", "0"}).out, mentions("2 processes are paused or asleep"));
    REQUIRE(second.command("gpu-wake").status == 0);
    REQUIRE(together({"gpu-sleep", "--level", "0"}).status == 0);
    for (auto* host : {&first, &second}) CHECK(host->state() == "paused");
    CHECK(together({"gpu-wake"}).status == 0);
    for (auto* host : {&first, &second}) {
        CHECK(host->state() == "awake");
        host->check_unharmed();
    }
}

TEST_CASE("Pause: its work waits on while a sleep waits in vain for another program", "[pause]") {
    Host paused(captured({"GPU_SLEEP_GROUP=pair"}));
    Host busy(captured({"GPU_SLEEP_GROUP=pair"}));
    for (auto* host : {&paused, &busy}) host->tell("alloc weights 4194304 0");
    REQUIRE(pause_it(paused).status == 0);
    send_held_work(paused);
    busy.tell("spin 1500");
    CHECK(run({{command_file("gpu-sleep"), "--group", "pair", "--timeout", "400ms"}}).status == 4);
    CHECK(paused.state() == "paused");
    CHECK(paused.report("gate/waiting_threads") == "1");
    REQUIRE(paused.command("gpu-wake").status == 0);
    CHECK(paused.process().read_line() == "ok ");
    for (auto* host : {&paused, &busy}) host->check_unharmed();
}

TEST_CASE("Pause: one that wakes with another waits for it, and stays paused if that cannot wake",
          "[pause]") {
    Host paused(captured({"GPU_SLEEP_GROUP=pair"}));
    Host asleep(captured({"GPU_SLEEP_GROUP=pair"}));
    for (auto* host : {&paused, &asleep}) host->tell("alloc weights 4194304 0");
    REQUIRE(pause_it(paused).status == 0);
    REQUIRE(asleep.command("gpu-sleep").status == 0);
    asleep.tell("fail cuMemMap 1 999");
    CHECK(run({{command_file("gpu-wake"), "--group", "pair"}}).status == 7);
    CHECK(paused.state() == "paused");
    CHECK(asleep.state() == "asleep");
    CHECK(run({{command_file("gpu-wake"), "--group", "pair"}}).status == 0);
    for (auto* host : {&paused, &asleep}) host->check_unharmed();
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

TEST_CASE("Pause: it lasts through a stop whatever else of the program sleeps, with its answer to a touch",
          "[pause]") {
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

TEST_CASE("Pause: a paused program forks, and ends", "[pause]") {
    LoadedHost host(captured());
    REQUIRE(pause_it(host).status == 0);
    CHECK(host.tell("raw_fork") == "0");
    CHECK(host.tell("fork").ends_with(" 0"));
    CHECK(host.state() == "paused");
    host.process().send("exit 3");
    CHECK(host.wait() == 3);
}
