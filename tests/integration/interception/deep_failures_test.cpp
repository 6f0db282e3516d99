// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Deep sleeps in which the driver fails, a command or the process is killed, or room is short, at any step:
// how the process stands, what is said, and what the next command makes of it.

#include "deep_machine.hpp"

#include "support/configuration.hpp"

using namespace gpu_sleep::test;

TEST_CASE("Deep: a command that is killed at any step leaves it asleep", "[deep]") {
    const auto next = GENERATE(false, true); // goes deep again, or wakes
    DeepMachine machine;
    SECTION("before the lock") {
        Process process(machine.launch("deep", {}, {"GPU_SLEEP_SIM_DELAY=cuCheckpointProcessLock:20s"}));
        pause_for(Milliseconds(200));
        process.signal(SIGKILL);
        CHECK(process.wait() == 128 + SIGKILL);
    }
    SECTION("locked") {
        machine.kill_amid("deep", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessLock");
    }
    SECTION("stopped meanwhile, and then killed") {
        Process process(
            machine.launch("deep", {}, {"GPU_SLEEP_SIM_DELAY=cuCheckpointProcessCheckpoint:500ms"}));
        await_request(process);
        REQUIRE(becomes_true([&] { return machine.state() == "asleep"; })); // and the driver works
        process.signal(SIGSTOP);
        CHECK(machine.command("gpu-wake", {"--timeout", "300ms"}).status == 4); // the sleep is under way
        const Scratch place;
        const Configuration to_files(
            fmt::format("[host]\nbudget = \"1MiB\"\n[reclaim]\ndirectory = \"{}\"\n", place.file("files")));
        if (reads_configurations())
            CHECK(machine.command("gpu-reclaim", {"--config", to_files.file()}).status == 0);
        CHECK_FALSE(std::filesystem::exists(place.file("files"))); // a pass leaves it alone
        process.signal(SIGKILL);
        CHECK(process.wait() == 128 + SIGKILL);
    }
    const auto settled = [&] { return machine.command("gpu-sleep").status == 0; };
    CHECK(becomes_true(settled));
    CHECK(machine.state() == "asleep");
    if (next) machine.fall_asleep();
    machine.wake_whole();
}

TEST_CASE("Deep: a command that is stopped while all calls wait for it is named, and goes on", "[deep]") {
    DeepMachine machine;
    Process process(machine.launch("deep", {}, {"GPU_SLEEP_SIM_DELAY=cuCheckpointProcessCheckpoint:500ms"}));
    await_request(process);
    pause_for(Milliseconds(150)); // it sleeps, and the driver works
    process.signal(SIGSTOP);
    const auto note = [&] { return machine.command("gpu-ps").json("/processes/0/report/notes/0"); };
    CHECK(becomes_true([&] { return mentions(fmt::format("kill -CONT {}", process.pid())).match(note()); }));
    machine.expect_held(); // and woken once it sleeps deeply
    CHECK(process.wait() == 0);
    machine.wake();
    machine.expect_awake();
}

TEST_CASE("Deep: what another tool has done to it is found and taken as it is", "[deep]") {
    DeepSleeper machine;
    std::vector<std::string> steps{"restore"};
    if (GENERATE(false, true)) steps.emplace_back("unlock");
    CHECK(run(machine.launch("checkpoint_steps", steps)).status == 0);
    const auto sleeps = GENERATE(false, true);
    if (sleeps) CHECK(machine.command("gpu-sleep").json("/processes/0/state") == "asleep");
    machine.wake_whole();
}

TEST_CASE("Deep: it is not brought back without room", "[deep]") {
    DeepMachine machine;
    const auto word = GENERATE("wait", "wake");
    machine.fall_asleep({"--on-touch", word});
    Host other(machine.plain());
    other.tell("start");
    const auto filling = make_piece(other, "plain", free_bytes(other) - (std::uint64_t{12} << 20));
    CHECK(ended(machine.command("gpu-wake"), 7).json("/processes/0/error/code") == "out_of_device_memory");
    CHECK(machine.is_deep());
    if (word == std::string("wake")) {
        machine.expect_held();
        pause_for(Milliseconds(200));
        CHECK(machine.is_deep());
        other.tell("free " + filling.number);
    } else {
        Process waiting(machine.launch("gpu-wake", {"--wait", "60s"}));
        pause_for(Milliseconds(300));
        CHECK(machine.is_deep());
        other.tell("free " + filling.number);
        CHECK(waiting.finish().status == 0);
    }
    machine.expect_awake();
}

TEST_CASE("Deep: one with a context of its own and no room for the primary one is asleep, whole", "[deep]") {
    const Arguments contexts{"GPU_SLEEP_SIM_CONTEXT_BYTES=16777216"};
    DeepMachine machine(with(contexts, {"TEST_OWN_CONTEXT=1"}));
    machine.fall_asleep();
    Host other(machine.plain(contexts));
    other.tell("start");
    const auto filling = make_piece(other, "plain", free_bytes(other) - (std::uint64_t{36} << 20));
    const auto refused = machine.command("gpu-wake"); // which its context leaves room for, and its memory
    CHECK(refused.status == 7);
    CHECK(refused.json("/processes/0/error/code") == "out_of_device_memory");
    CHECK(machine.state() == "asleep");
    other.tell("free " + filling.number);
    machine.wake_whole();
}

TEST_CASE("Deep: others make room for one that comes back", "[deep]") {
    const auto by_touch = GENERATE(false, true);
    DeepMachine machine({"GPU_SLEEP_MAKE_ROOM=1", "GPU_SLEEP_MIN_AWAKE=0"});
    machine.fall_asleep({"--on-touch", "wake"});
    Host other(machine.here(captured_launch(k_linked)));
    other.tell("start");
    const auto filling = make_piece(other, "plain", free_bytes(other) - (std::uint64_t{2} << 20));
    const auto pid = std::to_string(other.pid());
    const auto rehearsed = ended(machine.command("gpu-wake", {"--dry-run"}), 7);
    const auto needed = std::stoull(rehearsed.json("/processes/0/report/devices/0/moved_bytes"));
    CHECK(needed >= k_piece_bytes + k_context_bytes);
    CHECK(std::stoull(rehearsed.json("/processes/0/report/devices/0/free_before_bytes")) < needed);
    CHECK(machine.is_deep());
    if (by_touch) {
        machine.expect_held();
    } else {
        CHECK_THAT(ended(machine.command("gpu-wake", {"--make-room", "--min-awake", "0s"})).out,
                   mentions(pid) && mentions("was put to sleep for it"));
    }
    machine.expect_awake();
    machine.host.process().signal(SIGTERM);
    CHECK(machine.host.wait() == 128 + SIGTERM);
    CHECK(run(machine.here({{command_file("gpu-wake"), pid}, {}})).status == 0);
    check_intact(other, filling);
}

TEST_CASE("Deep: a process that the driver fails to checkpoint is lost, and that is said", "[deep]") {
    DeepMachine machine({"GPU_SLEEP_SIM_CHECKPOINT=fails"});
    check_ended(machine.command("deep"), 7, mentions("end it"));
    CHECK(machine.command("gpu-ps").json("/processes/0/state /processes/0/report/lost") == "asleep true");
    CHECK(machine.command("gpu-wake").status == 7);
    CHECK(machine.command("gpu-wake", {"--dry-run"}).status == 7);
    CHECK(machine.command("deep").status == 7);
    CHECK(machine.command("gpu-sleep").status == 7);
    // What it had can be saved still.
    const Scratch place;
    const auto files = place.file("files");
    CHECK(succeeded(machine.command("gpu-sleep", {"--store", "file", "--dir", files, "--keep-files"})));
    machine.host.process().signal(SIGTERM);
    CHECK(machine.host.wait() == 128 + SIGTERM);
    CHECK(succeeded(run({{command_file("gpu-snapshot"), "verify", files}, {}})));
}

TEST_CASE("Deep: a process whose restore found too little is lost, and what it kept can be saved", "[deep]") {
    const Scratch place;
    const auto trace = place.file("trace");
    const HeldCall restore("cuCheckpointProcessRestore");
    DeepMachine machine(with(restore.environment(), {"GPU_SLEEP_SIM_TRACE=" + trace}));
    machine.fall_asleep();
    Host other(machine.plain());
    other.tell("start");
    const auto looks = calls_done(trace, "cuDeviceGetUuid_v2");
    Process wake(machine.launch("gpu-wake", {"--json"}));
    REQUIRE(becomes_true([&] { return calls_done(trace, "cuDeviceGetUuid_v2") > looks; }));
    pause_for(Milliseconds(300)); // it has looked for room
    const auto filling = make_piece(other, "plain", free_bytes(other) - 4 * k_mib);
    restore.release();
    const auto expect_lost = [](const Output& woken) {
        CHECK(woken.status == 7);
        CHECK(woken.json("/processes/0/error/code") == "context_lost");
    };
    expect_lost(wake.finish());
    other.tell("free " + filling.number);
    expect_lost(machine.command("gpu-wake"));
    expect_lost(machine.command("gpu-wake", {"--dry-run"}));
    const auto listed = machine.command("gpu-ps");
    CHECK(listed.json("/processes/0/report/lost") == "true");
    CHECK_THAT(listed.json("/processes/0/report/notes/0"),
               mentions("restored it with too little GPU memory") && mentions("save what is kept"));
    CHECK(succeeded(
        machine.command("gpu-sleep", {"--store", "file", "--dir", place.file("files"), "--keep-files"})));
    machine.host.kill();
    CHECK(run({{command_file("gpu-snapshot"), "verify", place.file("files")}, {}}).status == 0);
}
