// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sleeping by the driver's checkpoint when the driver fails, a command is killed or room is short at any
// step: how the process stands, what is said, and what the next command makes of it.

#include "driver_machine.hpp"

using namespace gpu_sleep::test;

TEST_CASE("Driver engine: the next command completes what a killed one began", "[driver_engine]") {
    struct Row {
        const char *command, *amid, *after, *delay = "20s";
        bool sleeps_again = false;
    };
    const auto row = GENERATE(values<Row>({
        {"sleep", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessLock"},
        {"sleep", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessLock", "20s", true},
        {"sleep", "nvmlDeviceGetMemoryInfo", "cuCheckpointProcessCheckpoint", "500ms"}, // what that freed
        {"gpu-wake", "cuCheckpointProcessRestore", "cuCheckpointProcessGetState"},
        {"gpu-wake", "cuCheckpointProcessUnlock", "cuCheckpointProcessRestore"},
    }));
    INFO(row.command << " amid " << row.amid);
    Machine machine;
    if (row.command == std::string_view("gpu-wake")) REQUIRE(machine.command("sleep").status == 0);
    machine.kill_amid(row.command, row.amid, row.after, row.delay);
    if (row.sleeps_again) CHECK(ended(machine.command("sleep")).json("/processes/0/state") == "asleep");
    machine.expect_held();
    machine.wake_whole();
}

TEST_CASE("Driver engine: what a command leaves, killed while it waits for the lock", "[driver_engine]") {
    Machine machine({"GPU_SLEEP_SIM_DELAY=cuLaunchKernel:3s"});
    machine.host.process().send("launch " + machine.piece.number + " 0");
    pause_for(Milliseconds(200));
    Process process(machine.launch("sleep"));
    REQUIRE(becomes_true([&] { return machine.command("gpu-ps").json("/processes/0/state") == "asleep"; }));
    process.signal(SIGKILL);
    CHECK(process.wait() == 128 + SIGKILL);
    const auto slept = GENERATE(false, true);
    if (slept)
        CHECK(machine.command("sleep").json("/processes/0/state") == "asleep"); // its work is done first
    CHECK(machine.command("gpu-wake").status == 0);
    CHECK(machine.host.process().read_line() == "ok " + machine.piece.hash);
    machine.expect_awake();
}

TEST_CASE("Driver engine: a stopped process is not waited for", "[driver_engine]") {
    Machine machine;
    const auto stop = [&] {
        machine.host.process().signal(SIGSTOP);
        pause_for(Milliseconds(50));
    };
    stop();
    for (const std::string command : {"sleep", "gpu-wake", "gpu-ps"})
        const auto late = ended(machine.command(command), 4);
    machine.host.process().signal(SIGCONT);
    REQUIRE(machine.command("sleep").status == 0);
    stop();
    CHECK(machine.command("gpu-wake").status == 4);
    machine.host.process().signal(SIGCONT);
    machine.wake_whole();
}

TEST_CASE("Driver engine: no process is restored without room", "[driver_engine]") {
    Machine machine;
    REQUIRE(machine.command("sleep").status == 0);
    Host other(machine.plain());
    const auto filling = make_piece(other, "plain", free_bytes(other) - (std::uint64_t{12} << 20));
    const auto refused = ended(machine.command("gpu-wake"), 7);
    CHECK(refused.json("/processes/0/error/code") == "out_of_device_memory");
    CHECK(ended(machine.command("gpu-wake", {"--dry-run"}), 7).json("/processes/0/report/refusal_code") ==
          "out_of_device_memory");
    CHECK(machine.command("gpu-wake", {"--dry-run", "--wait", "1s"}).status == 0);
    CHECK(refused.json("/processes/0/state") == "asleep");
    CHECK_THAT(refused.err, mentions(fmt::format("{} (", other.pid())) && mentions("--engine driver") &&
                                !mentions("--force") && !mentions("--make-room"));
    SECTION("it waits for room as asked") {
        Process waiting(machine.launch("gpu-wake", {"--wait", "60s"}));
        pause_for(Milliseconds(300));
        other.tell("free " + filling.number);
        CHECK(waiting.finish().status == 0);
        machine.expect_awake();
    }
    SECTION("what is tried all the same fails it") {
        const auto failed = ended(machine.command("gpu-wake", {"--force"}), 7);
        other.tell("free " + filling.number);
        for (const Arguments& arguments : {Arguments(), Arguments{"--force"}}) {
            const auto again = ended(machine.command("gpu-wake", arguments), 7);
            CHECK(again.json("/processes/0/error/code") == "context_lost");
            CHECK_THAT(again.err, mentions("it is lost") && !mentions("--force"));
        }
        CHECK(machine.command("gpu-ps").json("/processes/0/report/lost") == "true");
        machine.host.kill();
        CHECK(machine.command("gpu-wake").status == 3);
    }
}

TEST_CASE("Driver engine: a command that cannot ask the driver takes no note away", "[driver_engine]") {
    Machine machine;
    REQUIRE(machine.command("sleep").status == 0);
    const auto refused = ended(
        machine.command("sleep", {}, {"GPU_SLEEP_SIM_FAIL=cuCheckpointProcessGetState:1:800:forever"}), 5);
    machine.wake_whole();
}

TEST_CASE("Driver engine: what is not known of the room is asked for", "[driver_engine]") {
    Machine machine;
    REQUIRE(machine.command("sleep").status == 0);
    if (GENERATE(false, true))
        std::filesystem::remove(machine.record());
    else
        std::ofstream(machine.record()) << "gpu-sleep checkpoint 1\n"; // it is not whole
    const auto refused = ended(machine.command("gpu-wake"), 7);
    CHECK(machine.command("gpu-wake", {"--dry-run"}).status == 7);
    CHECK(machine.command("gpu-wake", {"--force"}).status == 0);
    machine.expect_awake();
}

TEST_CASE("Driver engine: whichever call fails, the process is as said, and wakes whole", "[driver_engine]") {
    Machine machine;
    const std::string command = GENERATE("sleep", "gpu-wake");
    const Scratch scratch;
    const Arguments traced{"GPU_SLEEP_SIM_TRACE=" + scratch.file("trace")};
    if (command == "gpu-wake") REQUIRE(machine.command("sleep").status == 0);
    REQUIRE(machine.command(command, {}, traced).status == 0);
    const auto calls = calls_in(scratch.file("trace")).size();
    REQUIRE(machine.command("gpu-wake").status == 0);
    int failed = 0;
    for (std::size_t nth = 1; nth <= calls; ++nth) {
        INFO(command << ", call " << nth);
        if (command == "gpu-wake") REQUIRE(machine.command("sleep").status == 0);
        const auto done = machine.command(command, {}, {fmt::format("GPU_SLEEP_SIM_FAIL=*:{}:999", nth)});
        failed += done.status != 0;
        INFO(done.err);
        const auto said = done.json("/processes/0/state");
        if (said != "none") CHECK(machine.command("gpu-ps").json("/processes/0/state") == said);
        const auto woken = machine.command("gpu-wake", {"--force"}); // its need may not be known
        CHECK((woken.status == 0 || woken.status == 3));             // 3: it is awake already
        machine.expect_awake();
    }
    CHECK(failed >= 3);
}
