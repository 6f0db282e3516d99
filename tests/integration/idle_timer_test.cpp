// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Processes with a timer of their own (gpu-run --idle): nobody asks for their sleeps.

#include "place.hpp"

using namespace gpu_sleep::test;

namespace {

constexpr double k_after = 1; ///< seconds

Arguments timed(Arguments more = {}) {
    return with(std::move(more), {"GPU_SLEEP_CAPTURE=1", "GPU_SLEEP_IDLE=1000"});
}

bool falls_asleep(const Host& host) {
    return becomes_true([&] { return host.state() == "asleep"; });
}

} // namespace

TEST_CASE("Idle timer: whoever is idle sleeps until used, again and again", "[quick][threads][idle_timer]") {
    LoadedHost host(timed());
    CHECK_THAT(host.command("gpu-ps").out, mentions("it sleeps after 1.00 s without work on the GPU"));
    auto soonest = std::numeric_limits<double>::max();
    for (int round = 0; round < 3; ++round) {
        host.tell("spin 1");
        const auto used = Clock::now();
        REQUIRE(falls_asleep(host));
        const auto asked = seconds_since(used);
        const auto slept = asked - std::stod(host.report("state_seconds"));
        CHECK(asked >= k_after);
        CHECK(slept < 10 * k_after); // for a busy machine
        soonest = std::min(soonest, slept);
        CHECK(host.report("gate/on_touch") == "wake");
        host.tell("spin 1");
        CHECK(host.report("woken_bytes") == "4194304");
    }
    // A second late at most, where a tenth of the time is less; the rest is for what a look takes.
    CHECK(soonest < k_after + 1 + (is_sanitized() ? 5 : 0.5));
    host.check_whole();
}

TEST_CASE("Idle timer: what is woken of a sleeper has its time again, and sleeps too", "[idle_timer]") {
    LoadedHost host(timed());
    host.tell("alloc cache 4194304 0");
    REQUIRE(falls_asleep(host));
    REQUIRE(host.command("gpu-wake", {"--tags", "weights"}).status == 0);
    CHECK(host.report("woken_bytes") == "4194304");
    CHECK(falls_asleep(host));
    host.tell("spin 1");
    host.check_whole();
}

TEST_CASE("Idle timer: it is set and taken away while the process runs", "[quick][idle_timer]") {
    const Scratch scratch;
    LoadedHost host(captured());
    const auto timer = [&](Arguments arguments) { return host.command("gpu-sleep", std::move(arguments)); };
    CHECK_THAT(ended(timer({"--idle", "1h", "--dir", scratch.path().string(), "--on-touch", "fail"})).out,
               mentions("it sleeps after 1 h") && mentions(" without work on the GPU (--idle)"));
    CHECK_THAT(host.command("gpu-reclaim", {"--why"}).out, mentions("it sleeps after 1 h"));
    CHECK(host.state() == "awake");
    CHECK_THAT(timer({"--idle", "1s", "--dir", scratch.path().string()}).out, mentions("after 1.00 s"));
    REQUIRE(falls_asleep(host));
    CHECK(host.report("gate/on_touch") == "wake");
    CHECK(host.report("file_bytes") != "0");
    CHECK_THAT(timer({"--idle", "0s"}).out, mentions("no timer puts it to sleep"));
    host.tell("spin 1");
    pause_for(Milliseconds(3'500));
    CHECK(host.state() == "awake");
    CHECK_THAT(host.command("gpu-ps").out, !mentions("it sleeps after"));
    check_ended(timer({"--idle", "1s", "--level", "2"}), 2, mentions("--idle sets a timer"));
    host.check_whole();
}

TEST_CASE("Idle timer: it heeds inhibitors, and sleeps when they end", "[idle_timer]") {
    LoadedHost host(timed());
    REQUIRE(host.command("gpu-inhibit").status == 0);
    host.tell("spin 1");
    pause_for(Milliseconds(3'000));
    CHECK(host.state() == "awake");
    REQUIRE(host.command("gpu-inhibit", {"--release"}).status == 0);
    CHECK(falls_asleep(host));
}

TEST_CASE("Idle timer: contents go where they are to, and a failed sleep is tried again", "[idle_timer]") {
    const Place place;
    std::filesystem::create_directory(place.path());
    std::filesystem::permissions(place.path(), std::filesystem::perms::all); // not private
    LoadedHost host(
        timed({"GPU_SLEEP_IDLE_STORE=weights=file", "GPU_SLEEP_IDLE_DIR=" + place.path().string()}));
    host.tell("alloc cache 4194304 0");
    CHECK(becomes_true(
        [&] { return host.command("gpu-ps").out.find("its last sleep failed") != std::string::npos; }));
    CHECK(host.state() == "awake");
    std::filesystem::permissions(place.path(), std::filesystem::perms::owner_all);
    REQUIRE(falls_asleep(host));
    CHECK(host.report("file_bytes") != "0");
    CHECK(host.report("host_bytes") != "0");
    CHECK_THAT(host.command("gpu-ps").out, !mentions("its last sleep failed"));
    host.tell("spin 1");
    host.check_whole();
}
