// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents in files when something is wrong: directories that are refused, disks that are full, files that
// somebody changed or that changed on the way, and processes and commands that are killed.

#include "place.hpp"
#include "support/small_disk.hpp"

#include <fmt/format.h>

using namespace gpu_sleep::test;
namespace fs = std::filesystem;

TEST_CASE("Store: a full disk ends a sleep with 8, awake, and leaves nothing there", "[store_failures]") {
    const SmallDisk disk("size=4m");
    if (!disk) return skip_without_right("mount a file system");
    TwoTagHost host;
    CHECK_THAT(host.command("gpu-sleep", {"--store", "file", "--dir", disk.path(), "--dry-run"}).out,
               mentions("it fails unless"));
    CHECK(ended(host.command("gpu-sleep", {"--store", "file", "--dir", disk.path(), "--json"}), 8)
              .json("/processes/0/error/code") == "out_of_disk");
    CHECK(fs::is_empty(disk.path()));
    host.check_unharmed();
    // Nor does what sleeps already change that.
    REQUIRE(host.command("gpu-sleep", {"--tags", "kv_cache"}).status == 0);
    CHECK(host.command("gpu-sleep", {"--store", "file", "--dir", disk.path()}).status == 8);
    CHECK(host.state() == "partial");
    host.wake_whole();
    // What fits does.
    host.tell("alloc small 1048576 0");
    CHECK(host.command("gpu-sleep", {"--store", "file", "--dir", disk.path(), "--tags", "small"}).status ==
          0);
    host.wake_whole();
    CHECK(fs::is_empty(disk.path()));
}

TEST_CASE("Store: a sleep that waits behind a wake has the room that its files had", "[store_failures]") {
    const SmallDisk disk("size=22m"); // for one sleep's files, not for two
    if (!disk) return skip_without_right("mount a file system");
    TwoTagHost host;
    const Arguments to_file{"--store", "file", "--dir", disk.path()};
    REQUIRE(host.command("gpu-sleep", to_file).status == 0);
    host.tell("delay cuMemcpyHtoDAsync 600000");
    auto waking = host.start("gpu-wake");
    await_request(waking);
    host.sleep(to_file);
    CHECK(waking.finish().status == 0);
    CHECK(host.state() == "asleep");
    host.tell("delay cuMemcpyHtoDAsync 0");
    host.wake_whole();
    CHECK(fs::is_empty(disk.path()));
}

TEST_CASE("Store: failing reads leave the process asleep and whole, slow ones wake it", "[store_failures]") {
    const SmallDisk disk("size=64m"); // files in memory are read by pread()
    if (!disk) return skip_without_right("mount a file system");
    TwoTagHost host;
    const Arguments to_file{"--store", "file", "--dir", disk.path()};
    for (int good = 0; good < 6; ++good) { // two headers, and a chunk or more of each file
        INFO(good << " reads are good");
        REQUIRE(host.command("gpu-sleep", to_file).status == 0);
        host.tell(fmt::format("reads 0 {}", good));
        check_ended(host.command("gpu-wake"), 7, mentions("cannot read"));
        CHECK(host.state() != "awake");
        host.tell("reads 0");
        host.wake_whole();
        CHECK(fs::is_empty(disk.path()));
    }
    REQUIRE(host.command("gpu-sleep", to_file).status == 0);
    host.tell("reads 50000");
    {
        const auto killed = host.start("gpu-wake");
        await_request(killed);
    }
    const auto state = host.state(); // waits for what is under way
    CHECK((state == "awake" || state == "asleep"));
    host.wake_whole();
    CHECK(fs::is_empty(disk.path()));
}

TEST_CASE("Store: a tag whose file is spoiled can be dropped, and the rest wakes", "[store_failures]") {
    const Place place;
    TwoTagHost host;
    REQUIRE(host.command("gpu-sleep", {"--store", "weights=file", "--dir", place.path()}).status == 0);
    REQUIRE(place.files().size() == 1);
    fs::resize_file(place.files().front(), 4096);
    check_ended(host.command("gpu-wake"), 6,
                mentions(place.files().front().string()) &&
                    mentions(fmt::format("gpu-sleep {} --tags TAG --discard TAG", host.pid())));
    CHECK(host.state() == "damaged");
    REQUIRE(host.command("gpu-wake", {"--tags", "kv_cache"}).status == 0);
    CHECK(host.tell("check 1") == "intact");
    REQUIRE(host.command("gpu-sleep", {"--tags", "weights", "--discard", "weights"}).status == 0);
    CHECK(host.tell("check 1") == "intact");
    REQUIRE(host.command("gpu-wake").status == 0);
    CHECK(host.tell("check 0") == "zero");
    CHECK(place.files().empty());
}

TEST_CASE("Store: what a killed process leaves is removed by the next sleep there", "[store]") {
    const Place place;
    {
        TwoTagHost host;
        SECTION("asleep") {
            REQUIRE(host.command("gpu-sleep", place.store()).status == 0);
            host.kill();
        }
        SECTION("while it is put to sleep") {
            host.tell("delay cuMemcpyDtoHAsync 200000");
            auto sleeping = host.start("gpu-sleep", place.store());
            REQUIRE(becomes_true([&] { return !place.files().empty(); }));
            host.kill();
            CHECK(sleeping.finish().status == 3);
        }
    }
    CHECK_FALSE(place.files().empty());
    int tries = 50;
    LoadedHost next;
    REQUIRE(next.command("gpu-sleep", place.store()).status == 0);
    while (place.files().size() > 1 && tries-- > 0) { // the kernel may still end what the killed one wrote
        REQUIRE(next.command("gpu-wake").status == 0);
        pause_for(Milliseconds(20));
        REQUIRE(next.command("gpu-sleep", place.store()).status == 0);
    }
    REQUIRE(place.files().size() == 1);
    CHECK_THAT(place.files().front().filename().string(), mentions(fmt::format("-{}-", next.pid())));
    REQUIRE(next.command("gpu-wake").status == 0);
    CHECK(place.files().empty());
}

TEST_CASE("Store: what is left of a process that runs another program is listed, and removed", "[store]") {
    const Place place;
    Host host, other;
    for (auto* each : {&host, &other}) each->tell("alloc weights 4194304 0");
    REQUIRE(host.command("gpu-sleep", place.store()).status == 0);
    REQUIRE(host.ask("exec") == "ready");
    REQUIRE(place.files().size() == 1);
    const auto states = [&] { return run({{command_file("gpu-snapshot"), "ls", place.path()}}).out; };
    // The kernel lets go of what the old program had a little after exec.
    CHECK(becomes_true([&] { return states().find("left over") != std::string::npos; }));
    REQUIRE(other.command("gpu-sleep", place.store()).status == 0);
    CHECK(place.files().size() == 1); // its own, which nobody takes for a leftover
    CHECK_THAT(states(), mentions("asleep") && !mentions("left over"));
    host.tell("alloc weights 4194304 0");
    REQUIRE(host.command("gpu-sleep", place.store()).status == 0); // the new program, under the same names
    for (auto* each : {&host, &other}) each->wake_whole();
    CHECK(place.files().empty());
}

TEST_CASE("Store: processes killed at random moments harm nobody and leave nothing for good", "[killed]") {
    const char* const wanted = std::getenv("GPU_SLEEP_TEST_KILLS");
    const int kills = wanted ? std::atoi(wanted) : is_sanitized() ? 6 : 12;
    const Place place;
    TwoTagHost survivor;
    std::mt19937 random(20261121);
    std::chrono::microseconds whole{0}; // a sleep and a wake
    int left = 0;
    for (int i = 0; i < kills; ++i) {
        INFO("kill " << i);
        TwoTagHost host({"GPU_SLEEP_SIM_DELAY=cuMemcpyDtoHAsync:1ms,cuMemcpyHtoDAsync:1ms"});
        if (i == 0) {
            const auto start = Clock::now();
            REQUIRE(host.command("gpu-sleep", place.store()).status == 0);
            REQUIRE(host.command("gpu-wake").status == 0);
            whole = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
        }
        const auto begun = Clock::now();
        const auto moment =
            begun + std::chrono::microseconds(std::uniform_int_distribution<long>(0, whole.count())(random));
        {
            auto sleeping = host.start("gpu-sleep", place.store());
            auto killer = [&] {
                std::this_thread::sleep_until(moment);
                host.process().signal(SIGKILL);
            };
            const std::jthread thread(killer);
            const auto slept = sleeping.finish();
            CHECK((slept.status == 0 || slept.status == 3));
            if (slept.status == 0) {
                const auto woken = host.command("gpu-wake").status;
                CHECK((woken == 0 || woken == 3));
                // The first may have been slow, and all others over before their moment.
                const auto took = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begun);
                if (woken == 0) whole = std::min(whole, took);
            }
        }
        CHECK(host.wait() == 128 + SIGKILL);
        left += !place.files().empty();
        REQUIRE(survivor.command("gpu-sleep", place.store()).status == 0);
        REQUIRE(survivor.command("gpu-wake").status == 0);
    }
    CHECK(survivor.tell("check_all") == "intact");
    CHECK(left > kills / 10); // some were killed in the middle
    // The kernel may still end what the last one wrote.
    for (int tries = 50; !place.files().empty() && tries > 0; --tries) {
        pause_for(Milliseconds(20));
        REQUIRE(survivor.command("gpu-sleep", place.store()).status == 0);
        REQUIRE(survivor.command("gpu-wake").status == 0);
    }
    CHECK(place.files().empty());
}
