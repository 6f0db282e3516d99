// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whom to put to sleep for room.

#include "client/room_plan.hpp"
#include "support/catch.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::client;

namespace {

constexpr const char* k_gpu = "GPU-1";
constexpr double k_never = std::numeric_limits<double>::infinity();

Candidate candidate(Bytes bytes, double idle, double awake = k_never) {
    return {{{k_gpu, bytes}}, idle, awake, 0, {}};
}

using Places = std::vector<std::size_t>;

Places plan(const std::vector<Candidate>& candidates, Bytes missing) {
    return plan_room(candidates, {{k_gpu, missing}});
}

/// A status of a program whose calls are intercepted, with `resident` bytes of a tag on one GPU.
model::Report status(Bytes resident) {
    model::Report report;
    report.intercepts = true;
    report.idle_seconds = 60;
    report.tags.emplace_back().resident = resident;
    report.devices.emplace_back().uuid = k_gpu;
    return report;
}

} // namespace

TEST_CASE("Room plan: the least recently used sleep first, and no more than needed", "[room_plan]") {
    const std::vector<Candidate> all{candidate(10, 5), candidate(10, 50), candidate(10, 500)};
    CHECK(plan(all, 0).empty());
    CHECK(plan(all, 10) == Places{2});
    CHECK(plan(all, 11) == Places{2, 1});
    CHECK(plan(all, 30) == Places{2, 1, 0});
    CHECK(plan(all, 31).empty()); // nobody sleeps for nothing
}

TEST_CASE("Room plan: of those at work, who has been awake for longest goes first", "[room_plan]") {
    CHECK(plan({candidate(10, 0, 3), candidate(10, 0, 9), candidate(10, 0)}, 10) == Places{2});
    CHECK(plan({candidate(10, 0, 3), candidate(10, 0, 9)}, 10) == Places{1});
}

TEST_CASE("Room plan: who is not needed any more stays awake", "[room_plan]") {
    // The largest alone is enough, though two were used less recently.
    CHECK(plan({candidate(10, 900), candidate(5, 800), candidate(60, 1)}, 60) == Places{2});
    CHECK(plan({candidate(10, 900), candidate(5, 800), candidate(60, 1)}, 70) == Places{0, 2});
}

TEST_CASE("Room plan: who may not sleep is passed over", "[room_plan]") {
    auto inhibited = candidate(10, 500);
    inhibited.against = "sleeps are inhibited";
    auto woken = candidate(10, 400);
    woken.protected_for = 3;
    const std::vector<Candidate> all{inhibited, woken, candidate(10, 1)};
    CHECK(plan(all, 10) == Places{2});
    CHECK(plan(all, 20).empty());
    CHECK(seconds_until_room(all, {{k_gpu, 20}}) == 3.);
    CHECK(seconds_until_room(all, {{k_gpu, 10}}) == 0.);
    CHECK_FALSE(seconds_until_room(all, {{k_gpu, 30}}));
}

TEST_CASE("Room plan: each GPU has its own needs", "[room_plan]") {
    const std::vector<Candidate> all{
        {{{"GPU-1", 10}}, 900, k_never, 0, {}},
        {{{"GPU-2", 10}}, 800, k_never, 0, {}},
        {{{"GPU-1", 10}, {"GPU-2", 10}}, 1, k_never, 0, {}},
    };
    CHECK(plan_room(all, {{"GPU-2", 5}}) == Places{1});
    CHECK(plan_room(all, {{"GPU-1", 5}, {"GPU-2", 5}}) == Places{0, 1});
    CHECK(plan_room(all, {{"GPU-1", 15}}) == Places{0, 2});
    CHECK(plan_room(all, {{"GPU-3", 1}}).empty());
}

TEST_CASE("Room plan: a status says what prevents a sleep", "[room_plan]") {
    auto report = status(k_gib);
    const auto free = candidate_of(report, Milliseconds(5'000));
    CHECK(against(free).empty());
    CHECK(free.frees == BytesByGpu{{k_gpu, k_gib}});
    CHECK(free.idle == 60);
    report.seconds_since_wake = 2;
    CHECK(against(candidate_of(report, Milliseconds(5'000))) ==
          "it was woken 2.00 s ago, and may sleep in 3.00 s");
    CHECK(candidate_of(report, Milliseconds(5'000)).protected_for == 3);
    CHECK(against(candidate_of(report, Milliseconds(2'000))).empty());
    report.inhibited = true;
    CHECK(against(candidate_of(report, Milliseconds(0))) == "sleeps are inhibited");
    CHECK(against(candidate_of(status(0), Milliseconds(0))) == "it has no awake memory");
    auto unseen = status(k_gib);
    unseen.idle_seconds.reset();
    CHECK(against(candidate_of(unseen, Milliseconds(0))) == "it is not known when it was last used");
}
