// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Deep sleeps that the program itself asks for (GPU_SLEEP_DEEP): the agent has a process outside lock and
// checkpoint it, which may fail, be late or be killed at any step.

#include "deep_machine.hpp"

using namespace gpu_sleep::test;
using Catch::Matchers::StartsWith;

namespace {

/// What an answer of the API begins with: its status, and what is asleep then.
std::string begin_of(gpu_sleep_status status, std::uint64_t asleep) {
    return fmt::format("{} {} ", static_cast<int>(status), asleep);
}

/// It sleeps without the driver's part, works, and no lock is left.
void expect_plain(DeepMachine& machine) {
    CHECK(process_outside(machine.host.pid()) == 0);
    CHECK(machine.state() == "asleep");
    machine.wake_whole();
}

} // namespace

TEST_CASE("Deep: the program puts itself to sleep, and wakes itself", "[quick][deep]") {
    DeepMachine machine;
    Host other(machine.plain());
    other.tell("start");
    const auto before = free_bytes(other);
    for (int round = 0; round < 2; ++round) {
        const auto slept = machine.host.tell(k_own_sleep);
        INFO(slept);
        CHECK(slept.starts_with("0 "));
        CHECK_FALSE(slept.starts_with("0 0 "));
        CHECK(process_outside(machine.host.pid()) == 0);
        CHECK(free_bytes(other) >= before + k_piece_bytes + k_context_bytes);
        CHECK(machine.host.tell(k_own_sleep).starts_with("0 "));
        CHECK(machine.host.tell("sleep_self 1 0").starts_with("0 "));
        CHECK(machine.is_deep());
        CHECK(machine.host.tell("wake_self").starts_with("0 0 "));
        CHECK(free_bytes(other) == before);
        machine.expect_awake();
    }
}

TEST_CASE("Deep: callbacks hear that a sleep is to be deep, and was", "[deep]") {
    DeepMachine machine;
    machine.host.tell("callbacks");
    const auto sleep = [&](const std::string& way) {
        if (way == "own") CHECK(machine.host.tell(k_own_sleep).starts_with("0 "));
        if (way == "own, plain") CHECK(machine.host.tell("sleep_self 1 0").starts_with("0 "));
        if (way == "command") machine.fall_asleep({"--level", "2"});
        if (way == "command, plain") CHECK(machine.command("gpu-sleep").status == 0);
    };
    const auto told = [&] {
        machine.wake();
        return machine.host.tell("told");
    };
    for (const std::string way : {"own", "own, plain", "command, plain", "own"}) {
        sleep(way);
        const int deep = way == "own" ? 1 : 0;
        CHECK(told() == fmt::format(" level 1 deep {}, default 0 level 0 deep {}, default 0", deep, deep));
    }
    sleep("command, plain");
    sleep("own"); // nothing falls asleep
    CHECK(told() == " level 1 deep 0, default 0 level 0 deep 1, default 0");
    machine.expect_awake();
    sleep("command");
    CHECK(told() == " level 2 deep 1, default 1 level 0 deep 1, default 1");
}

TEST_CASE("Deep: a wake of what the driver alone had taken is one, too", "[deep]") {
    DeepMachine machine;
    machine.host.tell("free 0");
    machine.fall_asleep();
    machine.wake();
    CHECK(machine.command("gpu-ps").json("/processes/0/report/seconds_since_wake") != "null");
}

TEST_CASE("Deep: callbacks are not told of a deep sleep that did not come", "[deep]") {
    DeepMachine machine({"GPU_SLEEP_SIM_FAIL=cuCheckpointProcessLock:1:999"});
    machine.host.tell("callbacks");
    CHECK_FALSE(machine.host.tell(k_own_sleep).starts_with("0 "));
    machine.wake();
    CHECK(machine.host.tell("told") == " level 1 deep 1, default 0 level 0 deep 0, default 0");
    machine.expect_awake();
}

TEST_CASE("Deep: what a program cannot ask for is refused, and changes nothing", "[deep]") {
    DeepMachine machine;
    const auto invalid = begin_of(GPU_SLEEP_ERROR_INVALID_ARGUMENT, 0);
    CHECK_THAT(machine.host.tell(k_own_sleep + " default"), StartsWith(invalid) && mentions("tags"));
    CHECK(machine.host.tell(fmt::format("sleep_self {} 0", 3 | GPU_SLEEP_DEEP)).starts_with(invalid));
    CHECK(machine.host.tell(fmt::format("sleep_self {} 0", 1 | 0x200)).starts_with(invalid));
    machine.host.tell("alloc managed 4194304");
    CHECK_THAT(machine.host.tell(k_own_sleep),
               StartsWith(begin_of(GPU_SLEEP_ERROR_DRIVER, 0)) && mentions("managed memory"));
    machine.expect_awake();
}

TEST_CASE("Deep: a process with its own timer sleeps deeply until it is used, or else plainly", "[deep]") {
    const bool stays = GENERATE(false, true);
    DeepMachine machine({"GPU_SLEEP_IDLE=1000", "GPU_SLEEP_IDLE_DEEP=1"});
    if (stays) machine.host.tell("alloc managed 4194304");
    REQUIRE(becomes_true([&] { return machine.state() == (stays ? "asleep" : "deep"); }));
    CHECK(machine.command("gpu-inhibit").status == 0); // awake, it stays so
    machine.expect_awake();
}

TEST_CASE("Deep: what the driver refuses to the process outside leaves the program asleep", "[deep]") {
    DeepMachine machine({"GPU_SLEEP_SIM_FAIL=cuCheckpointProcessCheckpoint:1:999,"
                         "cuCheckpointProcessUnlock:1:999"});
    const auto failed = machine.host.tell(k_own_sleep);
    INFO(failed);
    CHECK(failed.starts_with(fmt::format("{} ", static_cast<int>(GPU_SLEEP_ERROR_DRIVER))));
    CHECK_THAT(failed, !mentions(" 0 ") && mentions("not deeply") && mentions("cuCheckpointProcess"));
    expect_plain(machine);
}

TEST_CASE("Deep: a process outside that is killed or late leaves the program asleep without it", "[deep]") {
    const std::string call = GENERATE("cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint");
    DeepMachine machine({"GPU_SLEEP_SIM_DELAY=" + call + ":20s"});
    machine.host.process().send(call == "cuCheckpointProcessLock"
                                    ? fmt::format("sleep_self {} 1000", 1 | GPU_SLEEP_DEEP)
                                    : k_own_sleep);
    const auto outside = await_process_outside(machine.host.pid());
    std::string words = "has ended";
    SECTION("killed") {
        CHECK(::kill(outside, SIGKILL) == 0);
    }
    if (call == "cuCheckpointProcessLock") { // for a checkpoint it has minutes
        SECTION("stopped, and late") {
            CHECK(::kill(outside, SIGSTOP) == 0);
            words = "is late";
        }
    }
    const auto failed = machine.host.process().read_line();
    CHECK_THAT(failed, StartsWith(fmt::format("ok {} ", static_cast<int>(GPU_SLEEP_ERROR_DRIVER))) &&
                           mentions("not deeply") && mentions(words));
    expect_plain(machine);
}

TEST_CASE("Deep: a program whose checkpoint fails is told that it is lost", "[deep]") {
    DeepMachine machine({"GPU_SLEEP_SIM_CHECKPOINT=fails"});
    CHECK_THAT(machine.host.tell(k_own_sleep),
               StartsWith(fmt::format("{} ", static_cast<int>(GPU_SLEEP_ERROR_CONTEXT_LOST))) &&
                   mentions("end it"));
    machine.host.process().signal(SIGTERM);
    CHECK(machine.host.wait() == 128 + SIGTERM);
}

TEST_CASE("Deep: a program that is killed amid its own deep sleep leaves no process behind", "[deep]") {
    const std::string call = GENERATE("cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint");
    DeepMachine machine({"GPU_SLEEP_SIM_DELAY=" + call + ":500ms"});
    machine.host.process().send(k_own_sleep);
    await_process_outside(machine.host.pid());
    const auto pid = machine.host.pid();
    machine.host.kill();
    CHECK(becomes_true([&] { return process_outside(pid) == 0; }));
}

TEST_CASE("Deep: a process outside that looks, and ends too early, is replaced, and none is left", "[deep]") {
    DeepMachine machine({"GPU_SLEEP_SIM_DELAY=cuMemUnmap:1500ms"});
    const auto pid = machine.host.pid();
    SECTION("killed while the program falls asleep") {
        Process sleep(machine.launch("gpu-sleep", {"--deep"}));
        CHECK(::kill(await_process_outside(pid, "look"), SIGKILL) == 0);
        CHECK(sleep.finish().status == 0);
        CHECK(machine.is_deep());
        machine.wake();
    }
    SECTION("of a program that is killed while it falls asleep") {
        machine.host.process().send(k_own_sleep);
        await_process_outside(pid, "look");
        machine.host.kill();
    }
    SECTION("of a dry run") {
        CHECK(machine.command("gpu-sleep", {"--deep", "--dry-run"}).status == 0);
    }
    CHECK(becomes_true([&] { return process_outside(pid, "look") == 0; }));
}

TEST_CASE("Deep: a process outside that could not run for a while is not late", "[deep]") {
    DeepSleeper machine;
    const auto looks = process_outside(machine.host.pid(), "look");
    REQUIRE(looks != 0);
    REQUIRE(::kill(looks, SIGSTOP) == 0);
    Process wake(machine.launch("gpu-wake", {"--timeout", "60s"}));
    pause_for(Milliseconds(6'000)); // longer than a library that hangs is given
    REQUIRE(::kill(looks, SIGCONT) == 0);
    CHECK(wake.finish().status == 0);
    machine.expect_works();
}

TEST_CASE("Deep: a management library that hangs is not waited for", "[deep]") {
    DeepMachine machine({"GPU_SLEEP_SIM_DELAY=nvmlDeviceGetMemoryInfo:50000ms"});
    check_ended(machine.command("gpu-sleep", {"--deep", "--timeout", "60s"}), 1,
                mentions("the management library does not answer"));
    CHECK(machine.state() == "awake");
    machine.expect_works();
}

TEST_CASE("Deep: what the driver cannot checkpoint, and comes after the check, is refused", "[deep]") {
    DeepMachine machine({"GPU_SLEEP_SIM_DELAY=nvmlDeviceGetMemoryInfo:1000ms"});
    const bool has_memory = GENERATE(true, false);
    if (!has_memory) machine.host.tell("free " + machine.piece.number);
    Process sleep(machine.launch("gpu-sleep", {"--deep"}));
    await_process_outside(machine.host.pid(), "look"); // it is asked once all else is checked
    machine.host.tell("alloc managed 4194304");
    check_ended(sleep.finish(), (has_memory ? 7 : 1),
                mentions("it has managed memory, which the driver cannot") &&
                    mentions(has_memory ? "asleep, but not deeply" : "cannot"));
    CHECK_FALSE(machine.is_deep());
    CHECK(machine.command("gpu-wake").status == 0);
    if (has_memory) machine.expect_awake();
}

TEST_CASE("Deep: a process that uses another GPU after the check leaves nothing there, either", "[deep]") {
    DeepMachine machine({"GPU_SLEEP_SIM_DELAY=nvmlDeviceGetMemoryInfo:1000ms"});
    Process sleep(machine.launch("gpu-sleep", {"--deep"}));
    await_process_outside(machine.host.pid(), "look");
    machine.host.tell("second_gpu");
    CHECK(succeeded(sleep.finish()));
    CHECK(machine.is_deep());
    CHECK(machine.command("gpu-ps").json("/processes/0/report/devices/1/device") == "1");
    machine.wake();
    machine.expect_awake();
}

TEST_CASE("Deep: memory that is shared while its process falls asleep can be opened", "[deep]") {
    DeepMachine machine({"GPU_SLEEP_SIM_DELAY=nvmlDeviceGetMemoryInfo:1000ms"});
    Host taker(machine.here(captured_launch(k_linked)));
    taker.tell("start");
    Process sleep(machine.launch("gpu-sleep", {"--deep"}));
    await_process_outside(machine.host.pid(), "look");
    const auto handle = machine.host.tell("share " + machine.piece.number);
    const auto done = sleep.finish();
    CHECK(done.status != 0);
    CHECK_THAT(done.err, mentions("shares memory"));
    CHECK_FALSE(machine.is_deep());
    CHECK(taker.ask(fmt::format("open {} {}", handle, k_piece_bytes)).starts_with("ok "));
    CHECK(machine.command("gpu-wake").status == 0);
}

TEST_CASE("Deep: the program's own children and signals know nothing of the process outside", "[deep]") {
    DeepMachine machine;
    REQUIRE(machine.host.tell(k_own_sleep).starts_with("0 "));
    CHECK(machine.host.tell("fork") == "7");
    REQUIRE(machine.host.tell("wake_self").starts_with("0 0 "));
    machine.expect_awake();
}

TEST_CASE("Deep: a program that is given orphans finds none of the processes outside", "[deep]") {
    const Scratch place;
    const auto trace = place.file("trace");
    DeepMachine machine({"GPU_SLEEP_ON_TOUCH=wake", "GPU_SLEEP_SIM_TRACE=" + trace});
    machine.host.tell("adopt");
    REQUIRE(machine.host.tell(k_own_sleep).starts_with("0 "));
    CHECK(machine.host.tell("children") == "none"); // though one runs, until it is awake
    CHECK(process_outside(machine.host.pid(), "look") != 0);
    SECTION("by the program itself") {
        REQUIRE(machine.host.tell("wake_self").starts_with("0 0 "));
    }
    SECTION("for a touch that waits") {
        Host other(machine.plain());
        other.tell("start");
        const auto filling = make_piece(other, "plain", free_bytes(other) - 4 * k_mib);
        constexpr int k_calls = 4; // two GPUs, each before it counts with others, and then
        const auto tries = [&] { return calls_done(trace, "cuDeviceGetUuid_v2") / k_calls; };
        machine.host.process().send("hash " + machine.piece.number);
        pause_for(Milliseconds(800)); // the first try takes several looks, on a busy machine later than this
        const auto before = tries();
        const auto since = std::chrono::steady_clock::now();
        pause_for(Milliseconds(4'000));
        const auto after = tries();
        const auto time = std::chrono::steady_clock::now() - since; // longer on a busy machine
        // One each second, and what is left of the first try.
        CHECK(after - before <= std::chrono::duration_cast<std::chrono::seconds>(time).count() + 3);
        CHECK(after > before);
        other.tell("free " + filling.number);
        CHECK(machine.host.process().read_line() == "ok " + machine.piece.hash);
    }
    CHECK(machine.command("gpu-sleep", {"--deep", "--dry-run"}).status == 0);
    CHECK(machine.host.tell("children all") == "none");
    machine.expect_awake();
}

TEST_CASE("Deep: it wakes though the program has changed its root, or has no descriptor left", "[deep]") {
    if (::geteuid() != 0) return skip_without_right("change the root directory");
    const bool changes_root = GENERATE(true, false);
    const Scratch place;
    DeepMachine machine;
    const auto pid = machine.host.pid();
    machine.fall_asleep({"--on-touch", "wake"});
    CHECK(process_outside(pid, "look") != 0);
    pause_for(Milliseconds(100));
    CHECK(machine.host.tell("children") == "none");
    machine.host.tell(changes_root ? "chroot " + place.path().string() : "descriptors used");
    check_intact(machine.host, machine.piece);
    CHECK(becomes_true([&] { return process_outside(pid, "look") == 0; }));
    CHECK(machine.host.tell("children all") == "none");
    check_no_harm(machine.host);
}

TEST_CASE("Deep: the process outside that looks ends with its program, also beside its child", "[deep]") {
    DeepSleeper machine;
    const auto pid = machine.host.pid();
    REQUIRE(process_outside(pid, "look") != 0);
    machine.host.kill();
    CHECK(becomes_true([&] { return process_outside(pid, "look") == 0; }));
}

TEST_CASE("Deep: wait() does not find a process outside that runs, nor one that was killed", "[deep]") {
    DeepMachine machine({"GPU_SLEEP_SIM_DELAY=cuMemUnmap:1500ms"});
    machine.host.tell("adopt");
    Process sleep(machine.launch("gpu-sleep", {"--deep"}));
    const auto looks = await_process_outside(machine.host.pid(), "look");
    CHECK(machine.host.tell("children") == "none");
    CHECK(::kill(looks, SIGKILL) == 0);
    REQUIRE(becomes_true([&] { return process_outside(machine.host.pid(), "look") == 0; }));
    CHECK(machine.host.tell("children") == "none");
    CHECK(sleep.finish().status == 0);
    machine.wake();
    CHECK(machine.host.tell("children all") == "none");
}
