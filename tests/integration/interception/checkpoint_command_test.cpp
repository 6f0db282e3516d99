// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuda-checkpoint and cr_client, as those call them who know NVIDIA's and GPU-CR's commands.

#include "deep_machine.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

Output call(const Machine& machine, const std::string& name, const Arguments& arguments,
            Arguments variables = {}) {
    return run({with({command_file(name), "--pid", std::to_string(machine.host.pid())}, arguments),
                machine.here({{}, {}}, std::move(variables)).environment});
}
/// What `--action` gives, or another word.
int checkpoint(const Machine& machine, const std::string& action, const Arguments& arguments = {}) {
    return call(machine, "cuda-checkpoint", with({"--action", action}, arguments)).status;
}
std::string state(const Machine& machine) {
    return call(machine, "cuda-checkpoint", {"--get-state"}).out;
}

} // namespace

TEST_CASE("cuda-checkpoint: the memory of a process with an agent sleeps before the lock",
          "[driver_engine]") {
    DeepMachine machine;
    Host other(machine.plain());
    other.tell("start");
    const auto before = free_bytes(other);
    const bool touches = GENERATE(false, true);
    for (int round = 0; round < 2; ++round) {
        REQUIRE(checkpoint(machine, "lock", {"--timeout", "10000"}) == 0);
        CHECK(state(machine) == "locked\n");
        CHECK(free_bytes(other) >= before + k_piece_bytes);
        CHECK(checkpoint(machine, "lock") == 1);
        REQUIRE(checkpoint(machine, "checkpoint") == 0);
        CHECK(state(machine) == "checkpointed\n");
        CHECK(free_bytes(other) >= before + k_piece_bytes + k_context_bytes);
        if (touches) machine.expect_held();
        REQUIRE(checkpoint(machine, "restore") == 0);
        REQUIRE(checkpoint(machine, "unlock") == 0);
        CHECK(becomes_true([&] { return machine.state() == "awake"; }));
        CHECK(state(machine) == "running\n");
        CHECK(free_bytes(other) == before);
        machine.expect_works();
    }
}

TEST_CASE("cuda-checkpoint: without an agent it is the driver's alone", "[driver_engine]") {
    Machine machine;
    REQUIRE(call(machine, "cuda-checkpoint", {"--toggle"}).status == 0);
    CHECK(state(machine) == "checkpointed\n");
    machine.expect_held();
    CHECK(call(machine, "cuda-checkpoint", {"--get-restore-tid"}).out ==
          std::to_string(machine.host.pid()) + '\n');
    const auto both = machine.uuid(0) + "=" + machine.uuid(1) + "," + machine.uuid(1) + "=" + machine.uuid(0);
    REQUIRE(checkpoint(machine, "restore", {"--device-map", both}) == 0);
    CHECK(call(machine, "cuda-checkpoint", {"--toggle"}).status == 1); // it is locked
    REQUIRE(checkpoint(machine, "unlock") == 0);
    machine.expect_awake();
}

TEST_CASE("cuda-checkpoint: what cannot be done ends with 1, and nothing has changed", "[driver_engine]") {
    DeepMachine machine;
    for (const auto* const action : {"checkpoint", "restore", "unlock", "sleep", ""})
        CHECK(checkpoint(machine, action) == 1);
    CHECK(call(machine, "cuda-checkpoint", {}).status == 1);
    CHECK(call(machine, "cuda-checkpoint", {"--get-state", "--toggle"}).status == 1);
    CHECK(call(machine, "cuda-checkpoint", {"--get-state", "--pid", "1234567890"}).status == 1);
    CHECK(call(machine, "cuda-checkpoint", {"--help"}).status == 0);
    CHECK_THAT(call(machine, "cuda-checkpoint", {"--help"}).out, mentions("--action"));
    const auto failed = call(machine, "cuda-checkpoint", {"--action", "lock"},
                             {"GPU_SLEEP_SIM_FAIL=cuCheckpointProcessLock:1:600"});
    CHECK(failed.status == 1);
    CHECK(becomes_true([&] { return machine.state() == "awake"; }));
    machine.expect_works();
}

TEST_CASE("cr_client: it keeps what a process with an agent has, and brings it back", "[driver_engine]") {
    DeepMachine machine;
    CHECK(call(machine, "cr_client", {"-i"}).status == 0);
    REQUIRE(call(machine, "cr_client", {"-c", "-m", "-s", "4096:8192"}).status == 0);
    CHECK(machine.state() == "asleep");
    REQUIRE(call(machine, "cr_client", {"-r"}).status == 0);
    CHECK(machine.state() == "awake");
    machine.expect_works();
    CHECK(call(machine, "cr_client", {}).status == 1);
    Machine without;
    for (const auto* const action : {"-i", "-c", "-r"})
        CHECK(call(without, "cr_client", {action}).status == 1);
}
