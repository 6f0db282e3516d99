// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents in files when processes share a directory, and when they or commands are killed.

#include "place.hpp"

#include <fmt/format.h>

using namespace gpu_sleep::test;

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

TEST_CASE("Store: what a process leaves that runs another program is listed as such, and removed",
          "[store]") {
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
