// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-reclaim --engine driver: processes without an agent that the management library has not seen at work.

#include "driver_machine.hpp"

#include "support/catch.hpp"

#include <string>

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

Output pass(const Machine& machine, const std::string& idle, const std::string& window,
            const std::string& at_work = {}, Arguments more = {}) {
    more.insert(more.begin(), {"--idle", idle, "--engine", "driver"});
    return machine.command("gpu-reclaim", std::move(more),
                           {"GPU_SLEEP_SIM_WINDOW=" + window, "GPU_SLEEP_SIM_AT_WORK=" + at_work});
}

} // namespace

TEST_CASE("Driver idle: a pass puts to sleep what was not seen at work for as long as is remembered",
          "[driver_engine]") {
    Machine machine;
    const auto rehearsed = pass(machine, "10s", "14", {}, {"--dry-run"});
    INFO(rehearsed.err);
    REQUIRE(rehearsed.status == 0);
    CHECK(rehearsed.json("/processes/0/state") == "awake");
    const auto done = pass(machine, "10s", "14");
    REQUIRE(done.status == 0);
    CHECK(done.json("/processes/0/engine") == "driver");
    CHECK(done.json("/processes/0/state") == "asleep");
    CHECK(std::stod(done.json("/processes/0/report/idle_seconds")) >= 14);
    machine.expect_held();
    CHECK(pass(machine, "10s", "14").status == 0); // it sleeps: nothing to do
    REQUIRE(machine.command("gpu-wake").status == 0);
    machine.expect_awake();
}

TEST_CASE("Driver idle: what was seen at work stays awake, and time is counted from pass to pass",
          "[driver_engine]") {
    Machine machine;
    const auto pid = std::to_string(machine.host.pid());
    const auto busy = pass(machine, "10s", "14", "1," + pid);
    REQUIRE(busy.status == 0);
    CHECK(busy.json("/processes/0/state") == "awake");
    CHECK(std::stod(busy.json("/processes/0/report/idle_seconds")) < 10);
    CHECK_THAT(busy.json("/processes/0/report/notes/0"), mentions("nothing was seen of it for"));
    pause_for(Milliseconds(2'200));
    const auto early = pass(machine, "2s", "0", pid);
    CHECK(early.json("/processes/0/state") == "awake");
    pause_for(Milliseconds(2'200));
    const auto late = pass(machine, "2s", "0");
    INFO(late.out);
    CHECK(late.json("/processes/0/state") == "asleep");
    REQUIRE(machine.command("gpu-wake").status == 0);
    machine.expect_awake();
}

TEST_CASE("Driver idle: the engine is chosen by whether there is an agent", "[driver_engine]") {
    Machine machine;
    const Arguments window{"GPU_SLEEP_SIM_WINDOW=14"};
    const auto done = machine.command("gpu-reclaim", {"--idle", "10s", "--engine", "auto"}, window);
    INFO(done.err);
    CHECK(done.status == 0);
    CHECK(done.json("/processes/0/engine") == "driver");
    CHECK(done.json("/processes/0/state") == "asleep");
    REQUIRE(machine.command("gpu-wake").status == 0);
    machine.expect_awake();
    Host with_agent(captured_launch(k_linked));
    const auto piece = make_piece(with_agent, "plain", k_piece_bytes);
    const auto asked = with_agent.command("gpu-reclaim", {"--idle", "10s", "--engine", "auto", "--json"});
    CHECK(asked.status == 0);
    CHECK(asked.json("/processes/0/engine") == "agent");
    check_intact(with_agent, piece);
}

TEST_CASE("Driver idle: options that only an agent can follow are refused", "[driver_engine]") {
    Machine machine;
    CHECK(pass(machine, "10s", "14", {}, {"--tags", "weights"}).status == 2);
    CHECK(pass(machine, "10s", "14", {}, {"--level", "2"}).status == 2);
    CHECK(pass(machine, "10s", "14", {}, {"--why"}).status == 2);
    machine.expect_awake();
}
