// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Processes without an agent, put to sleep by the driver's checkpoint, and restored on another GPU: what
// commands do and say.

#include "driver_machine.hpp"
#include "support/other_user.hpp"
#include "support/tree.hpp"

using namespace gpu_sleep::test;

namespace {

/// What the process has of which GPU, as gpu-ps says: the number of the only one that it uses.
std::string gpu_of(const Machine& machine) {
    const auto listed = machine.command("gpu-ps");
    INFO(listed.out << listed.err);
    CHECK(listed.json("/processes/0/report/devices/1") == "none");
    return listed.json("/processes/0/report/devices/0/device");
}

} // namespace

TEST_CASE("Driver engine: a process without an agent sleeps and wakes", "[quick][driver_engine]") {
    Machine machine;
    Host other(machine.plain());
    other.tell("start");
    const auto before = free_bytes(other);
    for (int round = 0; round < 2; ++round) {
        const auto slept = ended(machine.command("sleep"));
        CHECK(slept.json("/processes/0/engine /processes/0/state") == "driver asleep");
        CHECK(std::stoull(slept.json("/processes/0/report/devices/0/kept_bytes")) >= k_piece_bytes);
        CHECK(free_bytes(other) >= before + k_piece_bytes);
        CHECK(machine.has_record());
        machine.expect_held();
        CHECK(ended(machine.command("sleep")).json("/processes/0/report/changed") == "false");
        check_ended(machine.command("gpu-sleep"), 3, mentions("has put it to sleep already"));

        const auto woken = ended(machine.command("gpu-wake"));
        CHECK(woken.json("/processes/0/state") == "awake");
        CHECK(woken.json("/processes/0/report/devices/0/moved_bytes") ==
              slept.json("/processes/0/report/devices/0/moved_bytes"));
        CHECK(free_bytes(other) == before);
        machine.expect_awake();
    }
}

TEST_CASE("Driver engine: a dry run says what it would do, and does nothing", "[driver_engine]") {
    Machine machine;
    const auto sleep = ended(machine.command("sleep", {"--dry-run"}));
    CHECK(std::stoull(sleep.json("/processes/0/report/devices/0/moved_bytes")) >= k_piece_bytes);
    machine.expect_awake();
    REQUIRE(machine.command("sleep").status == 0);
    const auto wake = ended(machine.command("gpu-wake", {"--dry-run"}));
    CHECK(wake.json("/processes/0/state") == "asleep");
    CHECK(wake.json("/processes/0/report/devices/0/moved_bytes") ==
          sleep.json("/processes/0/report/devices/0/moved_bytes"));
    const auto move = machine.command("gpu-wake", {"--dry-run", "--gpu", "0=1"});
    CHECK(move.json("/processes/0/report/devices/0/device") == "1");
    machine.expect_held();
    CHECK(ended(machine.command("gpu-wake")).json("/processes/0/report/devices/0/device") == "0");
    machine.expect_awake();
}

TEST_CASE("Driver engine: what the driver would not bring back is left as it is", "[driver_engine]") {
    Machine machine({"LD_PRELOAD=" + library_file("unseen/libnvcuvid.so.1")});
    check_ended(machine.command("sleep"), 1,
                mentions("libnvcuvid.so.1 for the GPU's video and JPEG decoders"));
    machine.expect_awake();
}

TEST_CASE("Driver engine: who has no agent is told of it, who has one keeps it", "[driver_engine]") {
    Machine machine;
    const auto plain = ended(machine.command("gpu-sleep"), 3);
    CHECK_THAT(plain.err, mentions(" --engine driver"));
    const Host idle(machine.plain()); // it has not called CUDA
    check_ended(idle.command("gpu-sleep"), 3,
                mentions("does not use CUDA yet") && !mentions("--engine driver"));
    REQUIRE(machine.command("gpu-sleep", {"--engine", "auto"}).status == 0);
    CHECK(machine.command("gpu-wake", {"--tags", "weights"}).status == 2);
    check_ended(machine.command("gpu-switch"), 2,
                mentions(fmt::format("gpu-wake {}", machine.host.pid())) && !mentions("--make-room"));
    machine.wake_whole();

    const auto name = fmt::format("gpu-sleep-test-{}", ::getpid());
    Host with_agent(captured_launch(k_linked, {"GPU_SLEEP_NAME=" + name}));
    const auto piece = make_piece(with_agent, "plain", k_piece_bytes);
    const auto refused = ended(with_agent.command("gpu-sleep", {"--engine", "driver"}), 2);
    check_ended(run({{command_file("gpu-sleep"), name, "--engine", "driver"}}), 2,
                mentions("has an agent: gpu-sleep without --engine driver"));
    CHECK(
        ended(with_agent.command("gpu-sleep", {"--engine", "auto", "--json"})).json("/processes/0/engine") ==
        "agent");
    CHECK(with_agent.command("gpu-wake").status == 0);
    check_intact(with_agent, piece);
    const auto unknown = run({{command_file("gpu-sleep"), "some-name", "--engine", "driver"}});
    CHECK(unknown.status == 3); // a name may be that of a program
}

TEST_CASE("Driver engine: what others take meanwhile makes no restore begin early", "[driver_engine]") {
    Machine machine;
    Host other(machine.plain());
    other.tell("start");
    const HeldCall checkpoint("cuCheckpointProcessCheckpoint");
    Process sleeping(machine.launch("sleep", {}, checkpoint.environment()));
    REQUIRE(becomes_true([&] { return machine.has_noted_need(); }));
    const auto taken = make_piece(other, "plain", 6 * k_mib);
    checkpoint.release();
    CHECK(sleeping.finish().status == 0);
    // It had 13 MiB, and 7 became free.
    const auto filling = make_piece(other, "plain", free_bytes(other) - 20 * k_mib);
    check_ended(machine.command("gpu-wake"), 7, mentions("needs 29.0 MiB") && !mentions("--force"));
    other.tell("free " + filling.number);
    machine.wake_whole();
}

TEST_CASE("Driver engine: only the owner of a process and root may", "[driver_engine]") {
    if (::geteuid() != 0) return skip_without_right("act as another user");
    Machine machine;
    auto launch = machine.launch("sleep");
    launch.command.insert(launch.command.begin(),
                          {"setpriv", "--reuid", std::to_string(k_other_user), "--clear-groups"});
    const auto refused = ended(run(launch), 5);
    machine.expect_awake();
}

TEST_CASE("Driver engine: a process that uses no GPU, or has ended", "[driver_engine]") {
    Machine machine;
    const auto unused =
        ended(run({{command_file("gpu-sleep"), std::to_string(::getpid()), "--engine", "driver"}}), 3);
    REQUIRE(machine.command("sleep").status == 0);
    const auto note = machine.record();
    machine.host.process().signal(SIGTERM);
    CHECK(machine.host.wait() == 128 + SIGTERM);
    CHECK(machine.command("gpu-wake").status == 3);
    CHECK(std::filesystem::exists(note)); // until a command for another passes by
    const Machine next;
    CHECK(next.command("sleep").status == 0);
    CHECK_FALSE(std::filesystem::exists(note));
    CHECK(next.has_record());
    CHECK(next.command("gpu-wake").status == 0);
}

TEST_CASE("Driver engine: processes without an agent are listed as the driver says", "[driver_engine]") {
    Machine machine;
    const auto all = [&] {
        return run({{command_file("gpu-ps"), "--json"}, machine.launch("gpu-ps").environment});
    };
    const auto listed = [&](const Output& listing, const std::string& member) {
        INFO(listing.err);
        for (int i = 0; listing.json(fmt::format("/processes/{}/pid", i)) != "none"; ++i)
            if (listing.json(fmt::format("/processes/{}/pid", i)) == std::to_string(machine.host.pid()))
                return listing.json(fmt::format("/processes/{}/{}", i, member));
        return std::string("not listed");
    };
    const auto wake_of_all = [&] {
        return run({{command_file("gpu-wake"), "--all", "--dry-run", "--timeout", "5s", "--json"},
                    machine.launch("gpu-ps").environment});
    };
    CHECK(listed(wake_of_all(), "state") == "not listed");
    const auto awake = all();
    CHECK(listed(awake, "engine") == "driver");
    CHECK(listed(awake, "state") == "awake");
    CHECK(std::stoull(listed(awake, "report/devices/0/moved_bytes")) >= k_piece_bytes);
    CHECK_THAT(listed(awake, "report/notes/0"), mentions("--engine driver"));
    const auto why =
        run({{command_file("gpu-reclaim"), "--why", "--json"}, machine.launch("gpu-ps").environment});
    CHECK_THAT(listed(why, "reason"), mentions("--engine driver"));
    CHECK(ended(machine.command("gpu-ps")).json("/processes/0/state") == "awake");
    REQUIRE(machine.command("sleep").status == 0);
    const auto asleep = all();
    CHECK(listed(asleep, "state") == "asleep");
    CHECK(std::stoull(listed(asleep, "report/host_bytes")) >= k_piece_bytes);
    CHECK_THAT(listed(asleep, "report/notes/0"), mentions("gpu-wake"));
    CHECK(machine.command("gpu-ps").json("/processes/0/state") == "asleep");
    CHECK(listed(wake_of_all(), "state") == "asleep");
    const Scratch scratch; // any command may remove a stale record
    std::filesystem::copy_file(machine.record(), scratch.path() / "record");
    const auto pid = std::to_string(machine.host.pid());
    const auto stale = std::filesystem::path(machine.record())
                           .replace_filename(fmt::format("{}-1-{}.checkpoint", pid, pid_namespace()));
    std::filesystem::rename(machine.record(), stale);
    CHECK(listed(wake_of_all(), "state") == "not listed");
    std::filesystem::remove(stale);
    std::ofstream(machine.record()).close(); // its need is not known
    CHECK_THAT(
        run({{command_file("gpu-wake"), "--all", "--dry-run"}, machine.launch("gpu-ps").environment}).out,
        mentions(pid));
    std::filesystem::copy_file(scratch.path() / "record", machine.record(),
                               std::filesystem::copy_options::overwrite_existing);
    REQUIRE(machine.command("gpu-wake").status == 0);
    machine.kill_amid("sleep", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessLock");
    CHECK_THAT(listed(all(), "report/notes/0"), mentions("locked"));
    machine.wake_whole();
    // Nobody's who uses no GPU, nor its own.
    CHECK(run({{command_file("gpu-ps"), std::to_string(::getpid())}, machine.launch("gpu-ps").environment})
              .status == 3);
    machine.host.kill();
    CHECK(listed(all(), "state") == "not listed");
}

TEST_CASE("Driver engine: a process wakes on another GPU, and moves back", "[driver_engine]") {
    Machine machine;
    CHECK(machine.command("gpu-wake", {"--gpu", "0=1"}).status == 2); // it is awake
    CHECK(gpu_of(machine) == "0");
    REQUIRE(machine.command("sleep").status == 0);
    CHECK(machine.command("gpu-wake", {"--gpu", "1=0"}).status == 2); // it has nothing there
    CHECK(ended(machine.command("gpu-wake", {"--gpu", "0=1"})).json("/processes/0/report/devices/0/device") ==
          "1");
    CHECK(gpu_of(machine) == "1");
    machine.expect_awake();
    REQUIRE(machine.command("sleep").status == 0);
    REQUIRE(machine.command("gpu-wake").status == 0); // where it is
    CHECK(gpu_of(machine) == "1");
    REQUIRE(machine.command("sleep").status == 0);
    REQUIRE(machine.command("gpu-wake", {"--gpu", machine.uuid(1) + "=" + machine.uuid(0)}).status == 0);
    CHECK(gpu_of(machine) == "0");
    machine.expect_awake();
}

TEST_CASE("Driver engine: room is looked for where the process goes", "[driver_engine]") {
    Machine machine;
    REQUIRE(machine.command("sleep").status == 0);
    Host other(machine.plain());
    const auto full = make_piece(other, "plain", k_device_bytes / 4 * 3);
    CHECK(machine.command("gpu-wake").status == 7);
    REQUIRE(succeeded(machine.command("gpu-wake", {"--gpu", "0=1"})));
    CHECK(gpu_of(machine) == "1");
    machine.expect_awake();
    REQUIRE(machine.command("sleep").status == 0);
    check_ended(machine.command("gpu-wake", {"--gpu", "1=0"}), 7, mentions("on GPU 0"));
    machine.expect_held();
    machine.wake_whole();
    check_intact(other, full);
}

TEST_CASE("Driver engine: a driver that refuses a move leaves the process asleep", "[driver_engine]") {
    Machine machine;
    REQUIRE(machine.command("sleep").status == 0);
    const auto refused = ended(
        machine.command("gpu-wake", {"--gpu", "0=1"}, {"GPU_SLEEP_SIM_FAIL=cuCheckpointProcessRestore:1:1"}),
        2);
    CHECK_THAT(refused.err, mentions("CUDA_ERROR_INVALID_VALUE") && mentions("without --gpu"));
    CHECK(refused.json("/processes/0/state") == "asleep");
    machine.expect_held();
    machine.wake_whole();
    // An older driver has nothing but reserved bytes where the list would be.
    REQUIRE(machine.command("sleep").status == 0);
    check_ended(
        machine.command("gpu-wake", {"--gpu", "0=1"}, {"GPU_SLEEP_SIM_FAIL=cuDriverGetVersion:1:1:forever"}),
        2, mentions("only on the GPU where it was"));
    machine.expect_held();
    machine.wake_whole();
}
