// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Several deep sleepers that wake on one GPU at once: a restore without room loses its process, so none may
// count on room that another one is about to take.

#include "deep_family.hpp"

using namespace gpu_sleep::test;

namespace {

/// Wakes that take their time between the look for room and having it.
const Arguments k_slow{"GPU_SLEEP_SIM_DELAY=cuCheckpointProcessRestore:400ms"};

/// Two deep sleepers, and a program that leaves room for one of them.
struct Crowd {
    DeepFamily family{2, k_slow};
    std::optional<Host> other;
    Piece filling;

    Crowd() {
        REQUIRE(run(family.deep()).status == 0);
        other.emplace(family.plain());
        other->tell("start");
        filling = make_piece(*other, "plain", free_bytes(*other) - 30 * k_mib); // each takes 14, and wants 24
    }
    void make_room() { other->tell("free " + filling.number); }
};

} // namespace

TEST_CASE("Deep room: what a checkpoint frees beyond its count is looked for", "[deep][deep_together]") {
    DeepFamily family(1);
    Host other(family.plain());
    other.tell("start");
    const auto passing = make_piece(other, "plain", 30 * k_mib);
    const auto trace = family.file("trace");
    const HeldCall checkpoint("cuCheckpointProcessCheckpoint");
    Process sleeping(family.deep(with(checkpoint.environment(), {"GPU_SLEEP_SIM_TRACE=" + trace})));
    REQUIRE(becomes_true([&] { return calls_done(trace, "cuCheckpointProcessLock") == 1; }));
    // It was looked what is free.
    other.tell("free " + passing.number);
    checkpoint.release();
    CHECK(sleeping.finish().status == 0);
    const auto filling = make_piece(other, "plain", free_bytes(other) - 30 * k_mib);
    check_ended(family.wake(), 7, mentions("needs 38.0 MiB"));
    other.tell("free " + filling.number);
    family.check_wakes();
}

TEST_CASE("Deep room: those that wake together take turns, or all sleep on", "[deep][deep_together]") {
    Crowd crowd;
    CHECK(crowd.family.states_in(ended(crowd.family.wake(), 7)).asleep == 2);
    crowd.make_room();
    crowd.family.check_wakes();
}

TEST_CASE("Deep room: of two touched at once one waits until there is room for it", "[deep][deep_together]") {
    Crowd crowd;
    REQUIRE(
        run(crowd.family.launch("gpu-sleep", {DeepFamily::root(), "--tree", "--on-touch", "wake"})).status ==
        0);
    for (int i = 0; i < 2; ++i) crowd.family[i].process().send("hash " + crowd.family.piece(i).number);
    CHECK(becomes_true([&] { return crowd.family.states().awake == 1; }));
    pause_for(Milliseconds(500));
    CHECK(crowd.family.states().deep == 1);
    crowd.make_room();
    for (int i = 0; i < 2; ++i)
        CHECK(crowd.family[i].process().read_line() == "ok " + crowd.family.piece(i).hash);
    crowd.family.check_all_awake();
}

TEST_CASE("Deep room: one restored for a command counts on nothing taken, either", "[deep][deep_together]") {
    DeepFamily family(1, k_slow);
    Host alone(family.plain());
    const auto piece = make_piece(alone, "plain", k_piece_bytes);
    const auto pid = std::to_string(alone.pid());
    REQUIRE(run(family.deep()).status == 0);
    REQUIRE(run(family.launch("gpu-sleep", {pid, "--engine", "driver"})).status == 0);
    Host other(family.plain());
    other.tell("start");
    const auto filling = make_piece(other, "plain", free_bytes(other) - 26 * k_mib);
    const auto wake = [&](bool by_driver, Arguments variables = {}) {
        return by_driver ? family.launch("gpu-wake", {pid}, std::move(variables))
                         : family.launch("gpu-wake", {DeepFamily::root(), "--tree"});
    };
    const bool driver_begins = GENERATE(false, true);
    CAPTURE(driver_begins);
    Process waking(wake(driver_begins, {"GPU_SLEEP_SIM_DELAY=cuCheckpointProcessRestore:1500ms"}));
    if (!driver_begins) await_request(waking);          // of the other no agent hears
    pause_for(Milliseconds(driver_begins ? 400 : 150)); // it has looked for room by now
    CHECK(run(wake(!driver_begins)).status == 7);
    CHECK(succeeded(waking.finish()));
    other.tell("free " + filling.number);
    CHECK(run(wake(!driver_begins)).status == 0);
    check_intact(alone, piece);
    family.check_all_awake();
}
