// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that comes and goes around a sleep, and memory that is short, damaged or gone: on the GPU and on the
// host.

#include "control_group.hpp"
#include "support/shared_devices.hpp"

#include <fmt/ranges.h>

using namespace gpu_sleep::test;

namespace {

std::size_t anonymous_bytes(pid_t process) {
    std::ifstream status("/proc/" + std::to_string(process) + "/status");
    std::size_t kib = 0;
    for (std::string word; status >> word && word != "RssAnon:";) {
    }
    return status >> kib ? kib << 10U : 0;
}

} // namespace

TEST_CASE("Memory: host memory goes back as contents are freed asleep", "[memory]") {
    constexpr Bytes k_part = 20 * k_mib;
    constexpr int k_stays = 6; // in two pieces of host memory
    Host host({"GPU_SLEEP_SIM_POISON=0"});
    for (int i = 0; i < 8; ++i) host.tell(fmt::format("alloc weights {} 0", k_part));
    REQUIRE(host.command("gpu-sleep").status == 0);
    CHECK(host.report("host_bytes") == std::to_string(8 * k_part));
    const auto before = anonymous_bytes(host.pid());
    for (int i = 0; i < 8; ++i)
        if (i != k_stays) host.tell(fmt::format("free {}", i));
    CHECK(becomes_true([&] { return host.report("host_bytes") == std::to_string(k_part); }));
    CHECK(anonymous_bytes(host.pid()) + 6 * k_part < before);
    CHECK(host.tell("pinned") == std::to_string(k_part)); // the wake is as fast as ever
    CHECK(host.state() == "asleep");
    host.wake_whole();
    CHECK(host.report("retained_bytes") == std::to_string(k_part));
    host.tell("hold"); // which holds back sleeps alone
    const auto released = host.command("gpu-sleep", {"--release-retained", "--timeout", "2s"});
    host.tell("resume");
    CHECK(released.status == 0);
    CHECK_THAT(released.out, mentions("gave back 20.0 MiB of retained host memory"));
    CHECK(host.state() == "awake");
    CHECK(host.tell("pinned") == "0");
    CHECK(host.report("retained_bytes") == "0");
}

TEST_CASE("Memory: a settled process has host memory made ready, and its first sleep takes it", "[memory]") {
    constexpr Bytes k_piece = 32 * k_mib;
    constexpr Milliseconds k_settled{3'000};
    Host host({"GPU_SLEEP_PREPARE=3", "GPU_SLEEP_SIM_POISON=0"});
    const auto start = Clock::now();
    host.tell(fmt::format("alloc weights {} 0", 2 * k_piece + k_mib));
    host.tell("policy kv_cache discard 0");
    host.tell(fmt::format("alloc kv_cache {} 0", 2 * k_piece));
    const auto retained = [&] { return host.report("retained_bytes"); };
    const auto at_first = retained();
    if (Clock::now() - start < k_settled) CHECK(at_first == "0"); // a busy machine may take longer
    REQUIRE(becomes_true([&] { return retained() == std::to_string(2 * k_piece); }, Milliseconds(20'000)));
    CHECK(host.tell("pinned") == std::to_string(2 * k_piece));
    REQUIRE(host.command("gpu-sleep").status == 0);
    CHECK(host.tell("pinned") == std::to_string(2 * k_piece + k_mib));
    CHECK(retained() == "0");
    REQUIRE(host.command("gpu-wake").status == 0);
    CHECK(retained() == std::to_string(2 * k_piece + k_mib));
    CHECK(host.tell("check 0") == "intact");
}

TEST_CASE("Memory: a program that has filled its GPU sleeps, moves, goes deep and wakes", "[memory]") {
    const SharedDevices devices(64 * k_mib);
    const auto here = with(devices.environment(), {"GPU_SLEEP_SIM_STREAM_BYTES=2097152"});
    const Scratch scratch;
    Host host(captured(here));
    host.tell("alloc weights 4194304 0"); // there is more room for the agent's own than ever after
    for (const auto bytes : {16 * k_mib, 4 * k_mib, 2 * k_mib})
        while (host.ask(fmt::format("alloc kv_cache {} 0", bytes)).starts_with("ok")) {
        }
    const auto command = [&](const char* name, Arguments arguments) {
        arguments.insert(arguments.begin(), {command_file(name), std::to_string(host.pid())});
        const auto done = run({arguments, here});
        INFO(done.err);
        return succeeded(done);
    };
    const std::vector<Arguments> ways{
        {}, {"--tags", "kv_cache"}, {"--store", "file", "--dir", scratch.path()}, {"--live"}, {"--deep"}};
    for (int round = 0; round < 2; ++round)
        for (const auto& way : ways) {
            INFO(fmt::format("{}", fmt::join(way, " ")));
            REQUIRE(command("gpu-sleep", way));
            REQUIRE(command("gpu-wake", {}));
            CHECK(host.report("tags/0/host_backed_bytes") == "0");
            CHECK(host.tell("check_all") == "intact");
        }
    CHECK_FALSE(host.ask("alloc kv_cache 2097152 0").starts_with("ok")); // it is full still
}

TEST_CASE("Memory: a control group's limit ends a sleep with 8 and kills nobody", "[memory]") {
    if (is_sanitized()) return skip("a sanitizer cannot work within a limit");
    const ControlGroup group;
    if (!group) return skip_without_right("make a memory control group");
    Host host;
    host.tell("alloc weights 33554432 0");
    group.take(host.pid());
    group.limit(std::size_t{272} << 20); // a sleep leaves 256 MiB to everybody else
    check_ended(host.command("gpu-sleep"), 8, mentions("control group") && mentions("--level 2"));
    CHECK(host.tell("check_all") == "intact");
    CHECK(host.command("gpu-sleep", {"--level", "2"}).status == 0);
    CHECK(host.command("gpu-wake").status == 0);
    group.limit(std::size_t{4} << 30);
    host.cycle();
}

TEST_CASE("Memory: a sleep that waits behind a wake has the host memory that it gives back", "[memory]") {
    if (is_sanitized()) return skip("a sanitizer cannot work within a limit");
    const bool is_pinned = GENERATE(true, false);
    const ControlGroup group;
    if (!group) return skip_without_right("make a memory control group");
    Host host;
    group.take(host.pid());
    host.tell("alloc weights 134217728 0");
    if (!is_pinned) host.tell("fail cuMemHostRegister 1 801");
    group.limit(group.usage() + (std::size_t{256 + 128 + 64} << 20)); // 256 MiB are left to everybody else
    REQUIRE(host.command("gpu-sleep").status == 0);
    host.tell("delay cuMemcpyHtoDAsync 600000");
    auto waking = host.start("gpu-wake");
    await_request(waking);
    host.sleep();
    CHECK(waking.finish().status == 0);
    CHECK(host.state() == "asleep");
    host.tell("delay cuMemcpyHtoDAsync 0");
    group.limit(std::size_t{4} << 30);
    host.wake_whole();
}

TEST_CASE("Memory: what a wake gives back goes little by little, or at once on request", "[memory]") {
    constexpr Bytes k_piece = 32 * k_mib;
    Host host({"GPU_SLEEP_RETAIN=0", "GPU_SLEEP_SIM_POISON=0"});
    host.tell(fmt::format("alloc weights {} 0", 3 * k_piece));
    REQUIRE(host.command("gpu-sleep").status == 0);
    host.tell("delay cuMemHostUnregister 2000"); // microseconds
    const auto start = Clock::now();
    REQUIRE(host.command("gpu-wake").status == 0);
    SECTION("with rests in between") {
        CHECK(becomes_true([&] { return host.tell("pinned") == "0"; }));
        CHECK(seconds_since(start) > 0.15); // two rests of 100 ms
    }
    SECTION("at once") {
        REQUIRE(host.command("gpu-sleep", {"--release-retained"}).status == 0);
        CHECK(host.tell("pinned") == "0");
    }
    CHECK(host.tell("check_all") == "intact");
}

TEST_CASE("Memory: a sleep has host memory at once that is retained of what does not sleep", "[memory]") {
    if (is_sanitized()) return skip("a sanitizer cannot work within a limit");
    const ControlGroup group;
    if (!group) return skip_without_right("make a memory control group");
    Host host;
    group.take(host.pid());
    host.tell("alloc weights 134217728 0");
    host.tell("alloc kv_cache 134217728 0");
    const auto sleep = [&](const char* tag) {
        const auto start = Clock::now();
        CHECK(succeeded(host.command("gpu-sleep", {"--tags", tag})));
        return seconds_since(start);
    };
    const auto with_plenty = sleep("weights");
    REQUIRE(host.command("gpu-wake").status == 0);
    group.limit(group.usage() + (std::size_t{256 + 64} << 20)); // 256 MiB are left to everybody else
    CHECK(sleep("kv_cache") < with_plenty + 1.9); // what is somebody else's is waited for, for 2 s
    group.limit(std::size_t{4} << 30);
    host.wake_whole();
}

TEST_CASE("Memory: host memory that is short does not hold up a sleep that uses files", "[memory]") {
    if (is_sanitized()) return skip("a sanitizer cannot work within a limit");
    const ControlGroup group;
    if (!group) return skip_without_right("make a memory control group");
    const Scratch scratch;
    Host host;
    group.take(host.pid());
    host.tell("alloc weights 134217728 0");
    const auto sleep = [&] {
        const auto start = Clock::now();
        host.sleep({"--store", "file", "--dir", scratch.path() / "sleep"});
        return seconds_since(start);
    };
    const auto with_plenty = sleep();
    CHECK(host.command("gpu-wake").status == 0);
    group.limit(group.usage() + (std::size_t{200} << 20)); // less than what a sleep leaves to everybody else
    CHECK(sleep() < 3 * with_plenty + 5); // waiting for a ring, and its halves, took 8 s more
    group.limit(std::size_t{4} << 30);
    host.wake_whole();
}
