// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Processes that the driver restores on another GPU.

#include "driver_machine.hpp"

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
