// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents in files when something is wrong: directories that are refused, disks that are full, files that
// somebody changed or that changed on the way.

#include "place.hpp"
#include "support/small_disk.hpp"

#include <fmt/format.h>

using namespace gpu_sleep::test;

namespace fs = std::filesystem;

TEST_CASE("Store: a full disk ends a sleep with 8, awake and whole, and leaves nothing there",
          "[store_failures]") {
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

TEST_CASE("Store: a sleep that waits behind a wake has the room that the wake's files had",
          "[store_failures]") {
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

TEST_CASE("Store: reads that fail leave the process asleep and whole, slow ones wake it in the end",
          "[store_failures]") {
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
                    mentions("gpu-sleep PID --tags TAG --discard TAG"));
    CHECK(host.state() == "damaged");
    REQUIRE(host.command("gpu-wake", {"--tags", "kv_cache"}).status == 0);
    CHECK(host.tell("check 1") == "intact");
    REQUIRE(host.command("gpu-sleep", {"--tags", "weights", "--discard", "weights"}).status == 0);
    CHECK(host.tell("check 1") == "intact");
    REQUIRE(host.command("gpu-wake").status == 0);
    CHECK(host.tell("check 0") == "zero");
    CHECK(place.files().empty());
}
