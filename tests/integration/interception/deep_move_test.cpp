// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Deep sleeps that end on another GPU.

#include "deep_machine.hpp"

#include "support/configuration.hpp"

using namespace gpu_sleep::test;

namespace {

/// The GPU of the program's only device, as it says itself.
std::string device_of(const Machine& machine) {
    const auto listed = machine.command("gpu-ps");
    CHECK(listed.json("/processes/0/report/devices/1") == "none");
    const auto uuid = listed.json("/processes/0/report/devices/0/uuid");
    return uuid == machine.uuid(0) ? "0" : uuid == machine.uuid(1) ? "1" : uuid;
}

/// Nearly all of the GPU that `other`, a program without an agent, is on.
Piece fill(Host& other) {
    other.tell("start");
    return make_piece(other, "plain", free_bytes(other) - (std::uint64_t{8} << 20));
}

} // namespace

TEST_CASE("Deep move: a process wakes on another GPU, lives there, and moves back", "[quick][deep]") {
    DeepSleeper machine;
    Host other(machine.plain());
    const auto filling = fill(other); // where it was there is no room
    CHECK(machine.command("gpu-wake").status == 7);
    machine.wake({"--gpu", "0=1"});
    CHECK(device_of(machine) == "1");
    machine.expect_works();
    // A person reads the number that nvidia-smi has; the program's own is 0. Where the kernel lists this
    // machine's own GPUs, their number is believed.
    const bool has_gpus = std::filesystem::exists("/proc/driver/nvidia/gpus");
    const auto names_it = [&](const std::string& command, const Arguments& options) {
        const auto text = run(machine.launch(command, options)).out;
        UNSCOPED_INFO(text);
        return has_gpus || (text.find("GPU 1") != text.npos && text.find("GPU 0") == text.npos);
    };
    CHECK(names_it("gpu-ps", {}));
    const Configuration always("[reclaim]\nmin-awake = \"0s\"\n");
    if (reads_configurations())
        CHECK(names_it("gpu-reclaim", {"--need", "54MiB", "--gpu", machine.uuid(1), "--config", always.file(),
                                       "--dry-run"}));
    CHECK(names_it("gpu-sleep", {"--deep"}));
    const auto back = ended(machine.command("gpu-wake", {"--gpu", "1=0"}), 7);
    CHECK(back.json("/processes/0/error/code") == "out_of_device_memory");
    // Who is on it.
    CHECK_THAT(back.err, mentions(machine.uuid(0)) && mentions(std::to_string(other.pid())));
    machine.wake(); // where it is
    CHECK(device_of(machine) == "1");
    machine.expect_awake();
    machine.fall_asleep();
    other.tell("free " + filling.number);
    machine.wake({"--gpu", machine.uuid(1) + "=" + machine.uuid(0)});
    CHECK(device_of(machine) == "0");
    machine.expect_works();
}

TEST_CASE("Deep move: what cannot be meant, or cannot be done, changes nothing", "[deep]") {
    DeepMachine machine;
    const auto refused = [&](const std::string& move, const std::string& why) {
        check_ended(machine.command("gpu-wake", {"--gpu", move}), 2, mentions(why));
    };
    refused("0=1", "does not sleep deeply");
    REQUIRE(machine.command("gpu-sleep").status == 0);
    refused("0=1", "does not sleep deeply");
    machine.fall_asleep();
    refused("1=0", "it had nothing on GPU 1");
    CHECK(ended(machine.command("gpu-wake", {"--gpu", "0=1", "--dry-run"}))
              .json("uuid kept_bytes", "/processes/0/report/devices/0/") ==
          machine.uuid(1) + " 6291456"); // k_piece_bytes in whole pages
    CHECK(machine.is_deep());
    machine.wake();
    CHECK(device_of(machine) == "0");
    machine.expect_works();
}

TEST_CASE("Deep move: one without memory that could sleep moves as asked, and no other way", "[deep]") {
    DeepMachine machine;
    machine.host.tell("free " + machine.piece.number);
    machine.fall_asleep();
    const auto refused = ended(machine.command("gpu-wake", {"--gpu", "1=0"}), 2);
    CHECK(machine.is_deep());
    machine.wake({"--gpu", "0=1"});
    machine.piece = make_piece(machine.host, "plain", k_piece_bytes);
    CHECK(device_of(machine) == "1");
    machine.expect_awake();
}

TEST_CASE("Deep move: a wake that is short of memory once it has moved goes on from there", "[deep]") {
    const Scratch scratch;
    const auto trace = scratch.file("trace");
    std::ptrdiff_t created = 0;
    {
        DeepMachine machine({"GPU_SLEEP_SIM_TRACE=" + trace});
        machine.fall_asleep();
        created = calls_done(trace, "cuMemCreate");
        machine.wake();
    }
    std::string failures = "GPU_SLEEP_SIM_FAIL=";
    for (int more = 1; more <= 50; ++more) // a few are tried again at once
        failures += fmt::format("{}cuMemCreate:{}:2", more > 1 ? "," : "", created + more);
    DeepMachine machine({failures});
    machine.fall_asleep();
    const bool waits = GENERATE(false, true);
    const auto woken =
        ended(machine.command("gpu-wake", {"--gpu", "0=1", "--wait", waits ? "30s" : "0s"}), (waits ? 0 : 7));
    if (!waits) {
        CHECK_THAT(woken.err, mentions("it is on the other GPU"));
        CHECK(machine.command("gpu-wake", {"--gpu", "0=1"}).status == 2);
        CHECK(machine.command("gpu-wake", {"--wait", "30s"}).status == 0);
    }
    CHECK(device_of(machine) == "1");
    machine.expect_awake();
}

TEST_CASE("Deep move: others make room for it where it goes", "[deep]") {
    DeepSleeper machine;
    machine.wake({"--gpu", "0=1"});
    machine.fall_asleep();
    Host other(machine.here(captured_launch(k_linked)));
    const auto filling = fill(other);
    CHECK(succeeded(machine.command("gpu-wake", {"--gpu", "1=0", "--make-room", "--min-awake", "0s"})));
    CHECK(device_of(machine) == "0");
    machine.expect_awake();
}
