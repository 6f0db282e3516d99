// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Processes without an agent, put to sleep by the driver's checkpoint: what commands do and say, and what the
// next command finds when one was killed, or the driver failed, at any step.

#include "intercepted_host.hpp"

#include "../mentions.hpp"
#include "support/catch.hpp"
#include "support/other_user.hpp"
#include "support/scratch.hpp"
#include "support/skip.hpp"

#include "base/process.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

constexpr std::uint64_t k_device_bytes = std::uint64_t{64} << 20;

/// The devices that the processes of a test share, and a program on them that has no agent.
class Machine {
public:
    explicit Machine(Arguments variables = {})
        : host(plain(std::move(variables))), piece(make_piece(host, "plain", k_piece_bytes)) {}

    /// A program that has no agent.
    [[nodiscard]] Launch plain(Arguments variables = {}) const {
        auto launch = plain_launch(k_linked);
        launch.environment.insert(launch.environment.end(), shared_.begin(), shared_.end());
        launch.environment.insert(launch.environment.end(), variables.begin(), variables.end());
        return launch;
    }
    /// `command` for the program; "sleep" is "gpu-sleep --engine driver".
    [[nodiscard]] Launch launch(const std::string& command, Arguments arguments = {},
                                Arguments variables = {}) const {
        const auto pid = std::to_string(host.pid());
        arguments.insert(arguments.begin(), {command_file(command == "sleep" ? "gpu-sleep" : command), pid});
        if (command == "sleep") arguments.insert(arguments.end(), {"--engine", "driver"});
        variables.insert(variables.end(), shared_.begin(), shared_.end());
        return {std::move(arguments), std::move(variables)};
    }
    [[nodiscard]] Output command(const std::string& name, Arguments arguments = {},
                                 Arguments variables = {}) const {
        arguments.emplace_back("--json");
        return run(launch(name, std::move(arguments), std::move(variables)));
    }
    /// Starts `command` with its driver's `call` delayed, and kills it once `done` is over, or else amid what
    /// comes first.
    void kill_amid(const std::string& command, const std::string& call, const std::string& done,
                   const std::string& delay = "20s") const {
        const auto trace = scratch_.file("trace");
        std::filesystem::remove(trace);
        Process process(launch(
            command, {}, {"GPU_SLEEP_SIM_DELAY=" + call + ":" + delay, "GPU_SLEEP_SIM_TRACE=" + trace}));
        const auto is_there = [&] {
            std::ifstream file(trace);
            return std::string(std::istreambuf_iterator<char>(file), {}).find(' ' + done + " 0 ") !=
                   std::string::npos;
        };
        REQUIRE(becomes_true(is_there));
        pause_for(Milliseconds(50)); // so that it is in the next call
        process.signal(SIGKILL);
        CHECK(process.wait() == 128 + SIGKILL);
    }

    /// The program's next call waits.
    void expect_held() {
        host.process().send("hash " + piece.number);
        is_asked_ = true;
        pause_for(Milliseconds(50));
    }
    /// The program works, and all is as before.
    void expect_awake() {
        if (std::exchange(is_asked_, false)) CHECK(host.process().read_line() == "ok " + piece.hash);
        check_intact(host, piece);
        CHECK(command("gpu-wake").status == 3); // nobody has anything to wake
        CHECK_FALSE(has_record());
    }

    [[nodiscard]] std::string record() const {
        const auto start = start_time_of(host.pid());
        REQUIRE(start);
        return fmt::format("{}/{}-{}.checkpoint",
                           std::filesystem::path(socket_file(host.pid())).parent_path().string(), host.pid(),
                           *start);
    }
    [[nodiscard]] bool has_record() const { return std::filesystem::exists(record()); }

private:
    Scratch scratch_;
    Arguments shared_{"GPU_SLEEP_SIM_STATE=" + scratch_.file("devices"),
                      "GPU_SLEEP_SIM_MEMORY=" + std::to_string(k_device_bytes)};
    bool is_asked_ = false;

public:
    Host host;
    Piece piece;
};

} // namespace

TEST_CASE("Driver engine: a process without an agent sleeps and wakes", "[driver_engine]") {
    Machine machine;
    Host other(machine.plain());
    other.tell("start");
    const auto before = free_bytes(other);
    for (int round = 0; round < 2; ++round) {
        const auto slept = machine.command("sleep");
        INFO(slept.err);
        REQUIRE(slept.status == 0);
        CHECK(slept.json("/processes/0/engine") == "driver");
        CHECK(slept.json("/processes/0/state") == "asleep");
        CHECK(std::stoull(slept.json("/processes/0/report/devices/0/kept_bytes")) >= k_piece_bytes);
        CHECK(free_bytes(other) >= before + k_piece_bytes);
        CHECK(machine.has_record());
        machine.expect_held();
        const auto again = machine.command("sleep");
        CHECK(again.status == 0);
        CHECK(again.json("/processes/0/report/changed") == "false");

        const auto woken = machine.command("gpu-wake");
        INFO(woken.err);
        REQUIRE(woken.status == 0);
        CHECK(woken.json("/processes/0/state") == "awake");
        CHECK(woken.json("/processes/0/report/devices/0/moved_bytes") ==
              slept.json("/processes/0/report/devices/0/moved_bytes"));
        CHECK(free_bytes(other) == before);
        machine.expect_awake();
    }
}

TEST_CASE("Driver engine: a dry run says what it would do, and does nothing", "[driver_engine]") {
    Machine machine;
    const auto sleep = machine.command("sleep", {"--dry-run"});
    REQUIRE(sleep.status == 0);
    CHECK(std::stoull(sleep.json("/processes/0/report/devices/0/moved_bytes")) >= k_piece_bytes);
    machine.expect_awake();
    REQUIRE(machine.command("sleep").status == 0);
    const auto wake = machine.command("gpu-wake", {"--dry-run"});
    REQUIRE(wake.status == 0);
    CHECK(wake.json("/processes/0/state") == "asleep");
    CHECK(wake.json("/processes/0/report/devices/0/moved_bytes") ==
          sleep.json("/processes/0/report/devices/0/moved_bytes"));
    machine.expect_held();
    REQUIRE(machine.command("gpu-wake").status == 0);
    machine.expect_awake();
}

TEST_CASE("Driver engine: who has no agent is told of it, who has one keeps it", "[driver_engine]") {
    Machine machine;
    const auto plain = machine.command("gpu-sleep");
    CHECK(plain.status == 3);
    CHECK_THAT(plain.err, mentions("no agent") && mentions("--engine driver"));
    REQUIRE(machine.command("gpu-sleep", {"--engine", "auto"}).status == 0);
    REQUIRE(machine.command("gpu-wake").status == 0);
    machine.expect_awake();
    CHECK(machine.command("sleep", {"--level", "2"}).status == 2);
    CHECK(machine.command("gpu-sleep", {"--engine", "auto", "--tags", "weights"}).status == 2);

    Host with_agent(captured_launch(k_linked));
    const auto piece = make_piece(with_agent, "plain", k_piece_bytes);
    const auto refused = with_agent.command("gpu-sleep", {"--engine", "driver"});
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err, mentions("has an agent"));
    const auto automatic = with_agent.command("gpu-sleep", {"--engine", "auto", "--json"});
    CHECK(automatic.status == 0);
    CHECK(automatic.json("/processes/0/engine") == "agent");
    CHECK(with_agent.command("gpu-wake").status == 0);
    check_intact(with_agent, piece);
    CHECK(run({{command_file("gpu-sleep"), "some-name", "--engine", "driver"}}).status == 2);
}

TEST_CASE("Driver engine: work that does not end in time leaves the process awake", "[driver_engine]") {
    Machine machine({"GPU_SLEEP_SIM_DELAY=cuLaunchKernel:1s"});
    machine.host.process().send("launch " + machine.piece.number + " 0");
    pause_for(Milliseconds(200));
    const auto late = machine.command("sleep", {"--timeout", "100ms"});
    CHECK(late.status == 4);
    CHECK(late.json("/processes/0/state") == "awake");
    CHECK(machine.host.process().read_line() == "ok " + machine.piece.hash);
    machine.expect_awake();
    CHECK(machine.command("sleep").status == 0);
    CHECK(machine.command("gpu-wake").status == 0);
    machine.expect_awake();
}

TEST_CASE("Driver engine: what the driver refuses is told in its words", "[driver_engine]") {
    Machine machine;
    const auto unsupported =
        machine.command("sleep", {}, {"GPU_SLEEP_SIM_FAIL=cuCheckpointProcessCheckpoint:1:801"});
    CHECK(unsupported.status == 1);
    CHECK_THAT(unsupported.err,
               mentions("CUDA_ERROR_NOT_SUPPORTED") && mentions("managed") && mentions("awake"));
    CHECK(unsupported.json("/processes/0/state") == "awake");
    machine.expect_awake();
    CHECK(machine.command("sleep", {}, {"GPU_SLEEP_SIM_FAIL=cuCheckpointProcessLock:1:800"}).status == 5);
    machine.expect_awake();
    // Neither the checkpoint nor taking the lock back.
    const auto stuck = machine.command("sleep", {},
                                       {"GPU_SLEEP_SIM_FAIL=cuCheckpointProcessCheckpoint:1:999,"
                                        "cuCheckpointProcessUnlock:1:999"});
    CHECK(stuck.status == 7);
    CHECK_THAT(stuck.err, mentions("locked"));
    machine.expect_held();
    CHECK(machine.command("gpu-wake").status == 0);
    machine.expect_awake();
    REQUIRE(machine.command("sleep").status == 0);
    const auto unrestored =
        machine.command("gpu-wake", {}, {"GPU_SLEEP_SIM_FAIL=cuCheckpointProcessRestore:1:999"});
    CHECK(unrestored.status == 7);
    CHECK(unrestored.json("/processes/0/state") == "asleep");
    CHECK(machine.command("gpu-wake", {}, {"GPU_SLEEP_SIM_FAIL=cuCheckpointProcessUnlock:1:999"}).status ==
          7);
    CHECK(machine.command("gpu-wake").status == 0);
    machine.expect_awake();
}

TEST_CASE("Driver engine: the next command completes what a killed one began", "[driver_engine]") {
    Machine machine;
    const std::string sleep = "sleep";
    SECTION("locked, and then woken") {
        machine.kill_amid(sleep, "cuCheckpointProcessCheckpoint", "cuCheckpointProcessLock");
        machine.expect_held();
    }
    SECTION("locked, and then put to sleep") {
        machine.kill_amid(sleep, "cuCheckpointProcessCheckpoint", "cuCheckpointProcessLock");
        const auto slept = machine.command(sleep);
        CHECK(slept.status == 0);
        CHECK(slept.json("/processes/0/state") == "asleep");
        machine.expect_held();
    }
    SECTION("checkpointed, before it was looked at what that freed") {
        machine.kill_amid(sleep, "cuDeviceTotalMem", "cuCheckpointProcessCheckpoint", "500ms");
        machine.expect_held();
    }
    SECTION("checkpointed, by a wake") {
        REQUIRE(machine.command(sleep).status == 0);
        machine.kill_amid("gpu-wake", "cuCheckpointProcessRestore", "cuCheckpointProcessGetState");
        machine.expect_held();
    }
    SECTION("locked, by a wake") {
        REQUIRE(machine.command(sleep).status == 0);
        machine.kill_amid("gpu-wake", "cuCheckpointProcessUnlock", "cuCheckpointProcessRestore");
        machine.expect_held();
    }
    const auto woken = machine.command("gpu-wake");
    INFO(woken.err);
    CHECK(woken.status == 0);
    machine.expect_awake();
}

TEST_CASE("Driver engine: what a command leaves that is killed while it waits for the lock",
          "[driver_engine]") {
    Machine machine({"GPU_SLEEP_SIM_DELAY=cuLaunchKernel:1s"});
    machine.host.process().send("launch " + machine.piece.number + " 0");
    pause_for(Milliseconds(200));
    Process process(machine.launch("sleep"));
    pause_for(Milliseconds(200));
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
    for (const std::string command : {"sleep", "gpu-wake", "gpu-ps"}) {
        const auto late = machine.command(command);
        INFO(late.err);
        CHECK(late.status == 4);
        CHECK_THAT(late.err, mentions("stopped"));
    }
    machine.host.process().signal(SIGCONT);
    REQUIRE(machine.command("sleep").status == 0);
    stop();
    CHECK(machine.command("gpu-wake").status == 4);
    machine.host.process().signal(SIGCONT);
    CHECK(machine.command("gpu-wake").status == 0);
    machine.expect_awake();
}

TEST_CASE("Driver engine: a process that the driver fails to checkpoint is lost, and that is said",
          "[driver_engine]") {
    Machine machine({"GPU_SLEEP_SIM_CHECKPOINT=fails"});
    const auto failed = machine.command("sleep");
    CHECK(failed.status == 7);
    CHECK_THAT(failed.err, mentions("CUDA_ERROR_UNKNOWN") && mentions("end it"));
    CHECK(machine.command("gpu-wake").status == 7);
    CHECK(machine.command("sleep").status == 7);
    CHECK_THAT(machine.command("gpu-ps").json("/processes/0/report/notes/0"), mentions("lost"));
    machine.host.process().signal(SIGTERM);
    CHECK(machine.host.wait() == 128 + SIGTERM);
    CHECK(machine.command("gpu-wake").status == 3);
}

TEST_CASE("Driver engine: an interrupted command undoes what it did", "[driver_engine]") {
    Machine machine;
    Process process(machine.launch("sleep", {}, {"GPU_SLEEP_SIM_DELAY=cuCheckpointProcessLock:500ms"}));
    pause_for(Milliseconds(200));
    process.signal(SIGINT);
    CHECK(process.finish().status == 128 + SIGINT);
    machine.expect_awake();
}

TEST_CASE("Driver engine: no process is restored without room", "[driver_engine]") {
    Machine machine;
    REQUIRE(machine.command("sleep").status == 0);
    Host other(machine.plain());
    const auto filling = make_piece(other, "plain", free_bytes(other) - (std::uint64_t{12} << 20));
    const auto refused = machine.command("gpu-wake");
    CHECK(refused.status == 7);
    CHECK(refused.json("/processes/0/error/code") == "out_of_device_memory");
    CHECK(refused.json("/processes/0/state") == "asleep");
    SECTION("it waits for room as asked") {
        Process waiting(machine.launch("gpu-wake", {"--wait", "60s"}));
        pause_for(Milliseconds(300));
        other.tell("free " + filling.number);
        CHECK(waiting.finish().status == 0);
        machine.expect_awake();
    }
    SECTION("what is tried all the same fails it") {
        const auto failed = machine.command("gpu-wake", {"--force"});
        CHECK(failed.status == 7);
        CHECK_THAT(failed.err, mentions("CUDA_ERROR_OUT_OF_MEMORY") && mentions("end it"));
        CHECK(machine.command("gpu-wake").status == 7);
        machine.host.process().signal(SIGKILL);
        machine.host.wait();
        CHECK(machine.command("gpu-wake").status == 3);
    }
}

TEST_CASE("Driver engine: what is not known of the room is asked for", "[driver_engine]") {
    Machine machine;
    REQUIRE(machine.command("sleep").status == 0);
    SECTION("the note is gone") {
        std::filesystem::remove(machine.record());
    }
    SECTION("the note is not whole") {
        std::ofstream(machine.record()) << "gpu-sleep checkpoint 1\n";
    }
    const auto refused = machine.command("gpu-wake");
    CHECK(refused.status == 7);
    CHECK_THAT(refused.err, mentions("--force"));
    CHECK(machine.command("gpu-wake", {"--force"}).status == 0);
    machine.expect_awake();
}

TEST_CASE("Driver engine: two commands do not get into each other's way", "[driver_engine]") {
    Machine machine;
    Process first(machine.launch("sleep", {}, {"GPU_SLEEP_SIM_DELAY=cuCheckpointProcessCheckpoint:1s"}));
    REQUIRE(becomes_true([&] { return machine.has_record(); }));
    CHECK(machine.command("sleep", {"--timeout", "100ms"}).status == 4);
    CHECK(machine.command("sleep").status == 0);
    CHECK(first.finish().status == 0);
    CHECK(machine.command("gpu-wake").status == 0);
    machine.expect_awake();
}

TEST_CASE("Driver engine: only the owner of a process and root may", "[driver_engine]") {
    if (::geteuid() != 0) return skip_without_right("act as another user");
    Machine machine;
    auto launch = machine.launch("sleep");
    launch.command.insert(launch.command.begin(),
                          {"setpriv", "--reuid", std::to_string(k_other_user), "--clear-groups"});
    const auto refused = run(launch);
    CHECK(refused.status == 5);
    CHECK_THAT(refused.err, mentions("only its owner and root"));
    machine.expect_awake();
}

TEST_CASE("Driver engine: a process that uses no GPU, or has ended", "[driver_engine]") {
    Machine machine;
    const auto unused = run({{command_file("gpu-sleep"), std::to_string(::getpid()), "--engine", "driver"}});
    CHECK(unused.status == 3);
    REQUIRE(machine.command("sleep").status == 0);
    machine.host.process().signal(SIGTERM);
    CHECK(machine.host.wait() == 128 + SIGTERM);
    CHECK(machine.command("gpu-wake").status == 3);
}

TEST_CASE("Driver engine: processes without an agent are listed, as the driver says they stand",
          "[driver_engine]") {
    Machine machine;
    const auto listed = [&](const std::string& member) {
        const auto all = run({{command_file("gpu-ps"), "--json"}, machine.launch("gpu-ps").environment});
        INFO(all.err);
        for (int i = 0; all.json(fmt::format("/processes/{}/pid", i)) != "none"; ++i)
            if (all.json(fmt::format("/processes/{}/pid", i)) == std::to_string(machine.host.pid()))
                return all.json(fmt::format("/processes/{}/{}", i, member));
        return std::string("not listed");
    };
    const auto one = [&] { return machine.command("gpu-ps"); };
    CHECK(listed("engine") == "driver");
    CHECK(listed("state") == "awake");
    CHECK(std::stoull(listed("report/devices/0/moved_bytes")) >= k_piece_bytes);
    CHECK_THAT(listed("report/notes/0"), mentions("--engine driver"));
    CHECK(one().status == 0);
    CHECK(one().json("/processes/0/state") == "awake");
    REQUIRE(machine.command("sleep").status == 0);
    CHECK(listed("state") == "asleep");
    CHECK_THAT(listed("report/notes/0"), mentions("gpu-wake"));
    CHECK(one().json("/processes/0/state") == "asleep");
    const auto table = run(machine.launch("gpu-ps"));
    CHECK_THAT(table.out, mentions("asleep") && mentions("host") && mentions("gpu-wake"));
    REQUIRE(machine.command("gpu-wake").status == 0);
    machine.kill_amid("sleep", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessLock");
    CHECK_THAT(listed("report/notes/0"), mentions("locked"));
    REQUIRE(machine.command("gpu-wake").status == 0);
    machine.expect_awake();
    // Nobody's who uses no GPU, nor its own.
    CHECK(run({{command_file("gpu-ps"), std::to_string(::getpid())}, machine.launch("gpu-ps").environment})
              .status == 3);
    machine.host.process().signal(SIGKILL);
    machine.host.wait();
    CHECK(listed("state") == "not listed");
}

TEST_CASE(
    "Driver engine: whichever call of the driver fails, the process is as the command says, and wakes whole",
    "[driver_engine]") {
    constexpr int k_calls = 20; // of a sleep, as of a wake, and some more
    Machine machine;
    const std::string command = GENERATE("sleep", "gpu-wake");
    int failed = 0;
    for (int nth = 1; nth <= k_calls; ++nth) {
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
