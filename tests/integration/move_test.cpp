// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Moving what sleeps from host memory to files and back by the commands: what they say, how they end when
// they are interrupted or killed, and what is left of a process that is.

#include "place.hpp"

using namespace gpu_sleep::test;
using namespace std::chrono_literals;

TEST_CASE("Move: a sleeper goes to files and back by tags, and commands say so", "[quick][threads][move]") {
    const Place place;
    TwoTagHost host;
    host.tell("alloc weights 6291456 1");
    REQUIRE(host.command("gpu-sleep").status == 0);
    CHECK_THAT(ended(host.command("gpu-sleep", place.store({"--dry-run"}))).out,
               mentions("nothing was changed") && mentions("would move") && mentions("are free there") &&
                   !mentions("WOULD FREE"));
    CHECK(place.files().empty());

    const auto cache = ended(host.command("gpu-sleep", place.store({"--tags", "kv_cache", "--json"})));
    CHECK(cache.json("state report/changed report/devices/0/relocated_bytes report/devices/0/moved_bytes",
                     "/processes/0/") == "asleep true 4194304 0");
    CHECK(cache.tag("kv_cache", "in_files_bytes") == "4194304");
    CHECK(cache.tag("weights", "in_files_bytes") == "0");

    CHECK_THAT(ended(host.command("gpu-sleep", place.store())).out,
               mentions("still asleep") && mentions("of kept contents to another store"));
    CHECK(place.files().size() == 3);

    const auto back = ended(host.command("gpu-sleep", {"--store", "host", "--json"}));
    CHECK(back.json("/processes/0/report/file_bytes") == "0");
    CHECK(back.tag("weights", "in_files_bytes") == "0");
    CHECK(place.files().empty());
    host.wake_whole();
}

TEST_CASE("Move: processes killed at random moments of a move leave nothing for good", "[killed]") {
    const char* const wanted = std::getenv("GPU_SLEEP_TEST_KILLS");
    const int kills = wanted ? std::atoi(wanted) : is_sanitized() ? 6 : 8;
    const Place place;
    TwoTagHost survivor;
    REQUIRE(survivor.command("gpu-sleep").status == 0);
    std::mt19937 random(20261123); // NOLINT(cert-msc51-cpp): the same each time
    int left = 0;
    for (int i = 0; i < kills; ++i) {
        INFO("kill " << i);
        Host host;
        host.tell("alloc weights 50331648 0");
        REQUIRE(host.command("gpu-sleep").status == 0);
        auto moving = host.start("gpu-sleep", place.store());
        // How long a command takes to begin differs by machine, so every other one is known to have begun.
        if (i % 2 == 1) CHECK(becomes_true([&] { return !place.files().empty(); }));
        pause_for(Milliseconds(random() % (i % 2 == 1 ? 50 : 150)));
        host.kill();
        const auto status = moving.finish().status;
        CHECK((status == 0 || status == 3));
        left += !place.files().empty();
        REQUIRE(survivor.command("gpu-sleep", place.store()).status == 0);
        REQUIRE(survivor.command("gpu-sleep", {"--store", "host"}).status == 0);
    }
    CHECK(left >= kills / 2);
    // The kernel may still end what the last one wrote.
    for (int tries = 50; !place.files().empty() && tries > 0; --tries) {
        pause_for(Milliseconds(20));
        REQUIRE(survivor.command("gpu-sleep", place.store()).status == 0);
        REQUIRE(survivor.command("gpu-sleep", {"--store", "host"}).status == 0);
    }
    CHECK(place.files().empty());
    survivor.wake_whole();
}
