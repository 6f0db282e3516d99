// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Unmodified programs with the agent preloaded: what they allocate sleeps and comes back, and what they do
// meanwhile waits.

#include "intercepted_host.hpp"

#include "support/shared_devices.hpp"

#include <fmt/format.h>

using namespace gpu_sleep::test;

namespace {

constexpr std::uint64_t k_MiB = std::uint64_t{1} << 20;
/// What the agent may keep for itself, and what the rounding of ranges may cost.
constexpr std::uint64_t k_slack = 8 * k_MiB;

/// What is intercepted and sleeps.
constexpr std::array k_kinds = {"plain", "pitch", "async", "pool", "vmm2", "vmm20", "segments"};

/// Sends `line`, which the gate must hold, and returns once it does.
void send_held(Host& host, const std::string& line) {
    host.process().send(line);
    REQUIRE(host.waits_at_the_gate());
    pause_for(Milliseconds(100));
    CHECK(host.report("gate/waiting_threads") == "1");
}

} // namespace

TEST_CASE("Interception: for one with its own context others sleep, primary ones too", "[interception]") {
    SharedDevices devices(900 * k_MiB);
    const auto variables = with(
        devices.environment(), {"GPU_SLEEP_SIM_POISON=0", "GPU_SLEEP_SIM_CONTEXT_BYTES=100663296"}); // 96 MiB
    Captured own(k_linked, with(variables, {"TEST_OWN_CONTEXT=1"}));
    const auto piece = make_piece(own, "plain", k_piece_bytes);
    own.sleep();
    Captured other(k_linked, variables);
    other.tell("start");
    const auto leave_free = [&, free = free_bytes(other)](std::uint64_t bytes) {
        other.tell(fmt::format("alloc plain {}", free - bytes));
    };
    const std::uint64_t free_mib = GENERATE(2, 80, 100); // too little, with the context, and with both
    const bool has_own_room = free_mib != 2;
    leave_free(free_mib * k_MiB);
    const auto dry = own.command("gpu-wake", {"--dry-run", "--json"});
    CHECK(mentions("it would fail").match(dry.json("/processes/0/report/refusal")) != has_own_room);
    CHECK(dry.status == (has_own_room ? 0 : 7));
    CHECK(own.command("gpu-wake").status == 7);
    own.wake({"--make-room", "--min-awake", "0s"});
    CHECK(other.state() == "asleep");
    check_intact(own, piece);
}

TEST_CASE("Interception: an unmodified program's memory sleeps, however made", "[quick][interception]") {
    const auto way = GENERATE(k_linked, k_dlsym, k_late, k_runtime, k_per_thread);
    if (!is_tested(way)) return;
    INFO(way.name);
    Captured host(way);
    CHECK(host.tell("null_stream") == (way.name == k_per_thread.name ? "own" : "shared"));
    const auto empty = free_bytes(host);
    std::vector<Piece> pieces;
    for (const auto* kind : k_kinds) pieces.push_back(make_piece(host, kind, k_piece_bytes));
    const auto awake = free_bytes(host);
    CHECK(awake <= empty - pieces.size() * k_piece_bytes);
    for (int round = 0; round < 3; ++round) {
        host.sleep();
        CHECK(host.state() == "asleep");
        CHECK(free_bytes(host) + k_slack >= empty);
        host.wake();
        CHECK(host.state() == "awake");
        for (const auto& piece : pieces) check_intact(host, piece);
    }
    for (auto& piece : pieces) piece.hash = host.tell("launch " + piece.number + " 3");
    host.cycle();
    for (const auto& piece : pieces) check_intact(host, piece);
    for (const auto& piece : pieces) host.tell("free " + piece.number);
    CHECK(free_bytes(host) + k_slack >= empty);
}

TEST_CASE("Interception: a touch while asleep waits until the process is awake", "[interception]") {
    using Case = std::pair<Way, const char*>;
    const auto [way, touch] =
        GENERATE(Case{k_linked, "launch 0 1"}, Case{k_dlsym, "hash 0"}, Case{k_late, "copy 1 0"},
                 Case{k_runtime, "replay 0"}, Case{k_per_thread, "alloc plain 4194304"});
    const std::string what = touch;
    INFO(way.name << ": " << what);
    Captured host(way);
    static_cast<void>(make_piece(host, "plain", k_piece_bytes));
    const auto other = make_piece(host, "async", k_piece_bytes);
    host.tell("capture 1 0");
    host.tell("end_capture");
    const auto replayed = host.tell("replay 0");
    host.sleep();
    send_held(host, what);
    CHECK(host.state() == "asleep");
    host.wake();
    const auto answer = host.process().read_line();
    CHECK(answer.substr(0, 3) == "ok ");
    if (what == "hash 0") CHECK(answer == "ok " + replayed);
    if (what == "replay 0") CHECK(answer == "ok " + replayed);
    if (what == "copy 1 0") CHECK(answer == "ok " + other.hash);
}

TEST_CASE("Interception: a touch wakes the process, or fails, if that was asked", "[quick][interception]") {
    Captured host(k_linked);
    auto piece = make_piece(host, "plain", k_piece_bytes);
    host.sleep({"--on-touch", "wake"});
    piece.hash = host.tell("launch 0 1");
    CHECK(becomes_true([&] { return host.state() == "awake"; }));
    host.sleep({"--on-touch", "fail"});
    CHECK(host.ask("launch 0 1").substr(0, 6) == "error ");
    CHECK(host.ask("alloc plain 4194304").substr(0, 6) == "error ");
    CHECK(host.state() == "asleep");
    host.wake();
    check_intact(host, piece);
}

TEST_CASE("Interception: touches are met as the last request wants it, while asleep", "[interception]") {
    Captured host(k_linked, {"GPU_SLEEP_RULES=min=8388608,tag=big"});
    static_cast<void>(make_piece(host, "plain", k_piece_bytes));
    host.tell("alloc plain 10485760");
    host.sleep({"--tags", "big", "--on-touch", "fail"});
    host.sleep(); // the rest
    CHECK(host.report("gate/on_touch") == "fail");
    CHECK(host.ask("launch 0 1").substr(0, 6) == "error ");
    CHECK_THAT(host.command("gpu-sleep", {"--on-touch", "wait"}).out, !mentions("nothing to do"));
    CHECK_THAT(host.command("gpu-sleep", {"--on-touch", "wait"}).out, mentions("nothing to do"));
    send_held(host, "launch 0 1");
    host.sleep({"--on-touch", "wake"}); // for those, too, that wait already
    CHECK(host.process().read_line().substr(0, 3) == "ok ");
    CHECK(becomes_true([&] { return host.state() == "awake"; }));
    CHECK(host.report("gate/on_touch") == "wait"); // as the next sleep would have it
}

TEST_CASE("Interception: a withdrawn wake does not wait for the call it waited for", "[interception]") {
    Captured host(k_runtime, {"GPU_SLEEP_RULES=min=8388608,tag=big", "GPU_SLEEP_SIM_DELAY=cuMemcpyDtoH:3s"});
    const auto small = make_piece(host, "plain", k_piece_bytes);
    host.tell("alloc plain 10485760");
    host.sleep({"--tags", "big", "--gate", "checked"});
    host.process().send("hash " + small.number); // passes, and is in the driver for long
    pause_for(Milliseconds(300));
    auto waking = host.start("gpu-wake");
    REQUIRE_FALSE(waking.wait_for(Milliseconds(300)).has_value());
    waking.signal(SIGTERM);
    waking.wait();
    CHECK(host.command("gpu-sleep", {"--dry-run"}).status == 0); // takes its turn
    const auto had_its_turn = Clock::now();
    CHECK(host.state() == "partial");
    CHECK(host.process().read_line() == "ok " + small.hash);
    CHECK(Clock::now() - had_its_turn > Milliseconds(200));
    host.wake();
}

TEST_CASE("Interception: a sleep waits for a capture under way, which is not broken", "[interception]") {
    using Case = std::pair<Way, const char*>;
    const auto [way, kind] =
        GENERATE(Case{k_linked, "capture 0 1"}, Case{k_runtime, "capture_allocation 0 1"},
                 Case{k_per_thread, "capture 0 1"});
    const std::string how = kind;
    INFO(way.name << ": " << how);
    Captured host(way);
    const auto from = make_piece(host, "plain", k_piece_bytes);
    auto to = make_piece(host, "vmm2", k_piece_bytes);
    host.tell(how);
    CHECK(host.command("gpu-sleep", {"--timeout", "300ms"}).status == 4);
    CHECK(host.state() == "awake");
    auto sleeping = host.start("gpu-sleep");
    CHECK_FALSE(sleeping.wait_for(Milliseconds(300)).has_value());
    host.process().send("end_capture"); // it may have to wait: instantiating a graph is a touch
    CHECK(succeeded(sleeping.finish()));
    CHECK(host.state() == "asleep");
    host.wake();
    CHECK(host.process().read_line() == "ok ");
    to.hash = host.tell("replay 1");
    check_intact(host, from);
    host.cycle();
    CHECK(host.tell("replay 1") == to.hash);
}

TEST_CASE("Interception: a sleep waits for a capture that contains others", "[interception]") {
    Captured host(GENERATE(k_linked, k_per_thread));
    static_cast<void>(make_piece(host, "plain", k_piece_bytes));
    static_cast<void>(make_piece(host, "plain", k_piece_bytes));
    host.tell("capture 0 1");
    auto sleeping = host.start("gpu-sleep", {"--timeout", "20s"});
    for (int i = 0; i < 20; ++i) { // it begins in between
        host.tell("capture_within");
        pause_for(Milliseconds(20));
    }
    host.process().send("end_capture");
    REQUIRE(sleeping.finish().status == 0);
    host.wake();
    CHECK(host.process().read_line().substr(0, 3) == "ok ");
}

TEST_CASE("Interception: what is freed while asleep is gone", "[interception]") {
    Captured host(k_linked);
    host.tell("start");
    const auto empty = free_bytes(host);
    std::vector<Piece> pieces;
    for (const auto* kind : {"plain", "pitch"}) pieces.push_back(make_piece(host, kind, k_piece_bytes));
    const auto own = make_piece(host, "vmm2", k_piece_bytes);
    const auto kept = make_piece(host, "plain", k_piece_bytes);
    host.sleep();
    const auto host_bytes = [&] { return std::stoull(host.report("host_bytes")); };
    const auto before = host_bytes();
    for (const auto& piece : pieces) host.tell("free " + piece.number);
    CHECK(becomes_true([&] { return host_bytes() + pieces.size() * k_piece_bytes <= before; }));
    host.process().send("free " + own.number); // may wait: the program unmaps that itself
    CHECK(host.state() == "asleep");
    host.wake();
    CHECK(host.process().read_line() == "ok ");
    check_intact(host, kept);
    CHECK(free_bytes(host) + k_piece_bytes + k_slack >= empty);
    const auto later = make_piece(host, "plain", k_piece_bytes);
    check_intact(host, later);
}

TEST_CASE("Interception: hundreds of allocations sleep and wake as one", "[interception]") {
    constexpr int k_count = 600;
    constexpr Bytes k_bytes = 2 * k_mib; // the least that no others share
    Captured host(k_linked, {fmt::format("GPU_SLEEP_SIM_MEMORY={}", (k_count + 64) * k_bytes)});
    const auto first = make_piece(host, "plain", k_bytes);
    for (int i = 2; i < k_count; ++i) host.tell(fmt::format("alloc plain {}", k_bytes));
    const auto last = make_piece(host, "plain", k_bytes);
    const auto before = free_bytes(host);
    host.sleep();
    CHECK(free_bytes(host) >= before + k_count * k_bytes);
    host.wake();
    check_intact(host, first);
    check_intact(host, last);
    check_no_harm(host);
}

TEST_CASE("Interception: memory that cannot be moved stays, is reported, and is whole", "[interception]") {
    Captured host(k_linked);
    const auto fixed = make_piece(host, "managed", k_piece_bytes);
    const auto moved = make_piece(host, "plain", k_piece_bytes);
    const auto before = free_bytes(host);
    host.sleep();
    CHECK(free_bytes(host) + k_slack >= before + k_piece_bytes);
    const auto listed = host.command("gpu-ps", {"--json"});
    CHECK(listed.json("/processes/0/report/residual/0/kind") == "managed");
    CHECK(listed.json("/processes/0/report/residual/0/reason") != "none");
    host.wake();
    check_intact(host, fixed);
    check_intact(host, moved);
}

TEST_CASE("Interception: memory left to the driver on request is reported while there", "[interception]") {
    using Case = std::pair<const char*, const char*>;
    const auto [setting, reason] = GENERATE(Case{"GPU_SLEEP_MIN_SIZE=1073741824", "--min-size"},
                                            Case{"GPU_SLEEP_RULES=capture=0", "a rule"});
    Captured host(k_linked, {setting});
    const auto row = [&](const std::string& kind, const std::string& field) -> std::string {
        const auto listed = host.command("gpu-ps", {"--json"});
        for (int i = 0; i < 4; ++i) {
            const auto at = fmt::format("/processes/0/report/residual/{}/", i);
            if (listed.json(at + "kind") == kind) return listed.json(at + field);
        }
        return "none";
    };
    std::vector<Piece> pieces;
    for (const auto* kind : {"plain", "plain", "async", "managed", "vmm2"})
        pieces.push_back(make_piece(host, kind, k_piece_bytes));
    CHECK(row("plain", "count") == "2");
    CHECK(row("plain", "bytes") == std::to_string(2 * k_piece_bytes));
    for (const auto* kind : {"plain", "virtual"}) CHECK_THAT(row(kind, "reason"), mentions(reason));
    CHECK(row("pool", "bytes") == std::to_string(k_piece_bytes));
    CHECK(row("managed", "bytes") == std::to_string(k_piece_bytes));
    if (GENERATE(false, true))
        host.tell("reset");
    else
        for (const auto& piece : pieces) host.tell("free " + piece.number);
    for (const auto* kind : {"plain", "pool", "managed"}) CHECK(row(kind, "kind") == "none");
}

TEST_CASE("Interception: preloaded alone, the agent leaves the program as it is", "[interception]") {
    for (const auto& launch :
         {preloaded_launch(k_runtime, {}), preloaded_launch(k_linked, {"GPU_SLEEP_CAPTURE=0"})}) {
        Host host(launch);
        const auto piece = make_piece(host, "plain", k_piece_bytes);
        const auto before = free_bytes(host);
        static_cast<void>(host.command("gpu-sleep"));
        CHECK(free_bytes(host) == before);
        check_intact(host, piece);
    }
}
