// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Programs that run on from host memory: what they do there, how they come back, and what is refused.

#include "deep_machine.hpp"

using namespace gpu_sleep::test;

namespace {

constexpr std::uint64_t k_granule = std::uint64_t{2} << 20;
constexpr std::uint64_t k_rounding = 2 * k_piece_bytes; // of ranges, and what the agent keeps for itself
constexpr std::array k_live_kinds = {"plain", "async", "pool", "vmm2", "vmm20", "segments"};
constexpr const char* k_code_of_error = "/processes/0/error/code";

std::uint64_t host_backed(const Host& host) {
    return std::stoull(host.report("tags/0/host_backed_bytes"));
}

Output go_live(const Host& host, Arguments options = {}) {
    return host.command("gpu-sleep", with(std::move(options), {"--live", "--json"}));
}

} // namespace

TEST_CASE("Live: a program runs on from host memory, and its memory comes back", "[quick][live]") {
    Captured host(k_linked);
    host.tell("null_stream");
    const auto empty = free_bytes(host);
    std::vector<Piece> pieces;
    for (const auto* kind : k_live_kinds) pieces.push_back(make_piece(host, kind, k_piece_bytes));
    host.tell("capture 1 0");
    host.tell("end_capture");
    const auto replayed = host.tell("replay 0");
    pieces[0].hash = replayed;
    const auto awake = free_bytes(host);
    const auto queries = [&] {
        std::vector<std::string> answers;
        for (const auto& piece : pieces) answers.push_back(host.tell("query " + piece.number + " 0"));
        return answers;
    };
    const auto asked = queries();
    CHECK_THAT(ended(go_live(host, {"--dry-run"})).out, mentions("would move to host memory in about"));
    CHECK(host_backed(host) == 0);
    CHECK(ended(go_live(host)).json("/processes/0/report/changed") == "true");
    CHECK(host.state() == "awake");
    CHECK(host.report("gate/state tags/0/resident_bytes") == "open 0");
    CHECK(host_backed(host) >= k_live_kinds.size() * k_piece_bytes);
    CHECK_THAT(host.command("gpu-ps").out, mentions("host (running)"));
    CHECK(free_bytes(host) + k_rounding >= empty);
    for (const auto& piece : pieces) check_intact(host, piece);
    CHECK(queries() == asked);
    CHECK(host.tell("replay 0") == replayed);
    for (auto& piece : pieces) piece.hash = host.tell("launch " + piece.number + " 3");
    CHECK(go_live(host).json("/processes/0/report/changed") == "false");

    const auto some = ended(host.command("gpu-wake", {"--live-bytes", "1MiB", "--json"}));
    CHECK(host.report("tags/0/resident_bytes") != "0");
    CHECK(host_backed(host) > 0);
    host.wake();
    CHECK(host_backed(host) == 0);
    CHECK(free_bytes(host) == awake);
    for (const auto& piece : pieces) check_intact(host, piece);
    for (const auto& piece : pieces) host.tell("free " + piece.number);
}

TEST_CASE("Live: what runs from host memory sleeps, is freed and mapped elsewhere like any other", "[live]") {
    Captured host(k_linked);
    std::vector<Piece> pieces;
    for (const auto* kind : k_live_kinds) pieces.push_back(make_piece(host, kind, k_piece_bytes));
    const auto awake = free_bytes(host);
    REQUIRE(go_live(host).status == 0);
    host.sleep();
    CHECK(host.state() == "asleep");
    CHECK(go_live(host).json("/processes/0/report/changed") == "false"); // what sleeps stays asleep
    CHECK(host.state() == "asleep");
    host.wake();
    CHECK(host_backed(host) == 0); // it wakes on the GPU
    CHECK(free_bytes(host) == awake);
    for (const auto& piece : pieces) check_intact(host, piece);
    REQUIRE(go_live(host, {"--bytes", "12MiB"}).status == 0);
    const auto some = host_backed(host);
    host.sleep();
    host.wake({"--live-bytes", "0"}); // or where it ran
    CHECK(host_backed(host) == some);
    CHECK(free_bytes(host) == awake + some);
    for (const auto& piece : pieces) check_intact(host, piece);
    REQUIRE(host.command("gpu-sleep", {"--level", "0"}).status == 0);
    REQUIRE(go_live(host).status == 0);
    CHECK(host.state() == "paused");
    CHECK(host_backed(host) > 0);
    host.wake({"--live-bytes", "0"});
    CHECK(host.state() == "awake");
    host.tell("wake_self"); // brings back what the program put to sleep
    CHECK(host_backed(host) > 0);
    for (const auto& piece : pieces) check_intact(host, piece);
    for (const auto& piece : pieces) host.tell("free " + piece.number);
    CHECK(go_live(host, {"--bytes", "1GiB"}).status == 0);
    const auto fresh = make_piece(host, "plain", k_piece_bytes);
    CHECK(host.report("tags/0/resident_bytes") != "0"); // new memory is the GPU's
    check_intact(host, fresh);
}

TEST_CASE("Live: a program that does not fit starts with its first memory in host memory", "[quick][live]") {
    constexpr std::uint64_t k_memory = std::uint64_t{64} << 20;
    Host host(gpu_run({"--live-bytes", "16MiB", "--live-bytes=other=1GiB", command_file(k_linked.program)},
                      {k_linked.variable, "GPU_SLEEP_SIM_MEMORY=" + std::to_string(k_memory)}));
    host.tell("null_stream");
    const auto empty = free_bytes(host);
    std::vector<Piece> pieces{make_piece(host, "vmm2", k_piece_bytes)}; // its own memory: on the GPU
    CHECK(host_backed(host) == 0);
    for (const auto* kind : {"plain", "async", "pool"})
        pieces.push_back(make_piece(host, kind, k_piece_bytes));
    const auto placed = host_backed(host);
    CHECK(placed == 3 * (k_piece_bytes + k_granule - k_piece_bytes % k_granule));
    CHECK(free_bytes(host) == empty - std::stoull(host.report("tags/0/resident_bytes")));
    // Without the host's, these two would not fit together.
    pieces.push_back(make_piece(host, "plain", free_bytes(host)));
    CHECK(host_backed(host) == placed);
    for (const auto& piece : pieces) check_intact(host, piece);
    for (auto& piece : pieces) piece.hash = host.tell("launch " + piece.number + " 3");
    host.tell("free " + pieces[1].number);
    pieces[1] = make_piece(host, "plain", k_piece_bytes); // takes its place
    CHECK(host_backed(host) == placed);
    const auto full = free_bytes(host);
    host.sleep();
    host.wake(); // for all of it there is no room
    CHECK(host_backed(host) == placed);
    CHECK(free_bytes(host) == full);
    for (const auto& piece : pieces) check_intact(host, piece);
    const auto all = host.command("gpu-wake", {"--live-bytes", "1GiB", "--json"});
    CHECK(all.json(k_code_of_error) == "out_of_device_memory");
    host.tell("free " + pieces.back().number);
    pieces.pop_back();
    host.wake({"--live-bytes", "1GiB"});
    CHECK(host_backed(host) == 0);
    for (const auto& piece : pieces) check_intact(host, piece);
    for (const auto& piece : pieces) host.tell("free " + piece.number);
    check_no_harm(host);
}

TEST_CASE("Live: memory of the agent's own functions is placed by its tag", "[live]") {
    Host host({"GPU_SLEEP_LIVE_BYTES=weights=4MiB"});
    for (const auto* tag : {"weights", "weights", "cache"})
        host.tell(fmt::format("alloc {} {} 0", tag, 2 * k_granule));
    const auto check_places = [&] {
        CHECK(host.report(
                  "tags/0/host_backed_bytes tags/1/tag tags/1/host_backed_bytes tags/1/resident_bytes") ==
              "0 weights 4194304 4194304");
    };
    check_places();
    host.check_unharmed();
    check_places();
    CHECK(host.report("woken_bytes") == "0"); // no measure: some was only mapped

    host.sleep(); // where it is
    CHECK(host.report("host_bytes unreleased_bytes") == "12582912 0");
    const Scratch scratch;
    const Arguments in_files{"--store", "weights=file", "--dir", scratch.file("sleep"), "--json"};
    host.tell(fmt::format("fail {} 1 999", GENERATE("cuEventCreate", "cuMemMap")));
    const auto moved = host.command("gpu-sleep", in_files); // the copies alone
    INFO(moved.out);
    REQUIRE(moved.status == 0);
    CHECK_THAT(moved.out, mentions("memory that the GPU uses in host memory stays there: "));
    CHECK(host.report("tags/1/in_files_bytes host_bytes") == "4194304 8388608");
    REQUIRE(host.command("gpu-sleep", in_files).status == 0);
    CHECK(host.report("tags/1/in_files_bytes") == "8388608");
    host.wake_whole();
    check_places();
    CHECK(host.report("woken_bytes") == "12582912");
    host.check_unharmed();
    CHECK(host.report("woken_bytes") == "12582912");
}

TEST_CASE("Live: what sleeps in place is not taken out while work runs, which it would wait for", "[live]") {
    LoadedHost host(captured({"GPU_SLEEP_LIVE_BYTES=weights=1GiB"}));
    host.tell("alloc cache 4194304 0");
    host.sleep({"--tags", "weights", "--gate", "checked"});
    host.tell("spin 5000");
    const Scratch scratch;
    const Arguments in_files{"--tags", "weights", "--store", "file", "--dir", scratch.file("sleep"),
                             "--json"};
    const auto busy = host.command("gpu-sleep", with(in_files, {"--timeout", "200ms"}));
    CHECK(busy.json(k_code_of_error) == "timed_out");
    CHECK(host.report("file_bytes") == "0");
    REQUIRE(succeeded(host.command("gpu-sleep", in_files)));
    CHECK(host.report("file_bytes") != "0");
    host.wake_whole();
}

TEST_CASE("Live: what sleeps in place is not taken out amid a capture, which is not broken", "[live]") {
    Captured host(k_linked, {"GPU_SLEEP_LIVE_BYTES=1GiB"});
    const auto from = make_piece(host, "plain", k_piece_bytes);
    auto to = make_piece(host, "plain", k_piece_bytes);
    host.sleep({"--gate", "checked"});
    host.process().send("capture 0 1");
    REQUIRE(becomes_true([&] { return host.report("gate/waiting_threads") == "1"; }));
    const Scratch scratch;
    const auto amid =
        host.command("gpu-sleep", {"--store", "file", "--dir", scratch.file("sleep"), "--json"});
    CHECK(amid.json(k_code_of_error) == "capture_in_progress");
    host.wake();
    CHECK(host.process().read_line() == "ok ");
    host.tell("end_capture");
    to.hash = host.tell("replay 1");
    check_intact(host, from);
}

TEST_CASE("Live: a program whose threads end contexts moves all the same", "[live]") {
    Captured host(k_linked);
    std::vector<Piece> pieces;
    for (int i = 0; i < 2; ++i) pieces.push_back(make_piece(host, "plain", 8 * k_piece_bytes));
    host.tell("contexts 1000");
    CHECK_THAT(ended(go_live(host)).out, !mentions("did not move"));
    CHECK(host.report("tags/0/resident_bytes") == "0");
    CHECK(ended(host.command("gpu-wake", {"--json"}))
              .json("/processes/0/report/devices/0/steps/await_host_seconds") == "0.0");
    CHECK(host_backed(host) == 0);
    host.tell("contexts 0");
    for (const auto& piece : pieces) check_intact(host, piece);
}

TEST_CASE("Live: it is refused, and nothing moves, where it cannot be", "[live]") {
    Captured without(k_linked, {"GPU_SLEEP_SIM_HOST_NUMA=0"});
    const auto piece = make_piece(without, "plain", k_piece_bytes);
    for (const auto& options : {Arguments{}, Arguments{"--dry-run"}})
        CHECK_THAT(ended(go_live(without, options), 1).out, mentions("cannot map host memory"));
    CHECK(host_backed(without) == 0);
    check_intact(without, piece);

    Captured poor(k_linked, {"GPU_SLEEP_HOST_BUDGET=" + std::to_string(k_piece_bytes)});
    const auto large = make_piece(poor, "plain", 2 * k_piece_bytes);
    CHECK(ended(go_live(poor), 8).json(k_code_of_error) == "out_of_host_memory");
    CHECK(host_backed(poor) == 0);
    check_intact(poor, large);

    Captured host(k_linked, {"GPU_SLEEP_SIM_MEMORY=67108864"});
    const auto other = make_piece(host, "plain", 4 * k_piece_bytes);
    CHECK(go_live(host, {"--tags", "unknown"}).status == 2);
    REQUIRE(host.command("gpu-inhibit").status == 0);
    CHECK(go_live(host).json(k_code_of_error) == "inhibited");
    CHECK(go_live(host, {"--ignore-inhibitors"}).status == 0);
    const auto taken = host.tell("alloc plain 41943040");
    CHECK(host.command("gpu-wake", {"--json"}).json(k_code_of_error) == "out_of_device_memory");
    CHECK(host_backed(host) > 0);
    check_intact(host, other);
    host.tell("free " + taken.substr(0, taken.find(' ')));
    host.wake();
    CHECK(host_backed(host) == 0);
    check_intact(host, other);
}

TEST_CASE("Live: what runs from host memory is shared as it is, and stays there", "[live]") {
    Captured giver(k_linked), taker(k_linked);
    auto given = make_piece(giver, "plain", k_piece_bytes);
    REQUIRE(go_live(giver).status == 0);
    const auto opened =
        taker.tell("open " + giver.tell("share " + given.number) + " " + std::to_string(k_piece_bytes));
    const auto number = opened.substr(0, opened.find(' '));
    CHECK(taker.tell("hash " + number) == given.hash);
    giver.wake(); // which leaves it
    CHECK_THAT(giver.command("gpu-ps").out, mentions("stays in host memory"));
    given.hash = taker.tell("launch " + number + " 3");
    check_intact(giver, given);
    taker.tell("free " + number);
    giver.tell("free " + given.number);
}

TEST_CASE("Live: what a network card may reach stays on the GPU", "[live]") {
    Captured host(k_linked);
    const auto piece = make_piece(host, "vmm2", k_piece_bytes);
    const auto other = make_piece(host, "plain", k_piece_bytes);
    host.tell("synchronous " + piece.number);
    REQUIRE(go_live(host).status == 0);
    CHECK(host.report("tags/0/resident_bytes residual/0/kind") == "0 virtual");
    for (const auto& each : {piece, other}) check_intact(host, each);
}

TEST_CASE("Live: what runs from host memory sleeps in files, and survives a fork", "[live]") {
    const Scratch scratch;
    Captured host(k_linked);
    const auto piece = make_piece(host, "plain", k_piece_bytes);
    REQUIRE(go_live(host, {"--tree"}).status == 0);
    CHECK(host_backed(host) > 0);
    CHECK(host.tell("fork") == "7");
    check_intact(host, piece);
    host.sleep({"--dir", scratch.file("sleep")});
    CHECK(host.report("tags/0/in_files_bytes") == host.report("tags/0/kept_bytes"));
    host.wake();
    CHECK(host_backed(host) == 0);
    check_intact(host, piece);
}

TEST_CASE("Live: a program that runs from host memory goes deep, and nothing of it can then move", "[live]") {
    DeepMachine machine;
    REQUIRE(machine.command("gpu-sleep", {"--live"}).status == 0);
    machine.fall_asleep();
    CHECK(machine.command("gpu-sleep", {"--live"}).json(k_code_of_error) == "refused");
    const bool goes_on = GENERATE(false, true);
    machine.wake(goes_on ? Arguments{"--live-bytes", "0"} : Arguments{});
    CHECK((host_backed(machine.host) > 0) == goes_on);
    machine.expect_works();
}

TEST_CASE("Live: a program may fork, run another program or end amid a move", "[live]") {
    LoadedHost host(captured());
    const bool is_exchanged = GENERATE(false, true);
    const bool comes_back = GENERATE(false, true);
    if (comes_back) REQUIRE(go_live(host).status == 0);
    const auto* const copies = comes_back ? "cuLaunchKernel" : "cuMemcpyDtoDAsync";
    const auto delay = [&](int microseconds) {
        host.tell(fmt::format("delay {} {}", is_exchanged ? "cuMemUnmap" : copies, microseconds));
    };
    delay(1'000'000);
    auto moving =
        comes_back ? host.start("gpu-wake", {"--json"}) : host.start("gpu-sleep", {"--live", "--json"});
    await_request(moving);
    if (is_exchanged) REQUIRE(becomes_true([&] { return host.moves_contents(); }));
    SECTION("fork") {
        host.tell("fork");
        CHECK(moving.finish().status == 0);
        CHECK((host_backed(host) > 0) != comes_back);
        delay(0);
        host.check_unharmed();
    }
    SECTION("exec") {
        CHECK(host.ask("exec") == "ready");
        CHECK(moving.finish().status == 3);
        host.tell("alloc weights 4194304 0");
        host.check_unharmed();
    }
    SECTION("exit") {
        host.process().send("exit 3");
        CHECK(host.wait() == 3);
        CHECK(moving.finish().status == 3);
    }
}

TEST_CASE("Live: work that never ends is not waited for, and nothing moves", "[live]") {
    LoadedHost host(captured());
    host.tell("spin 60000");
    CHECK(ended(go_live(host), 4).json(k_code_of_error) == "timed_out");
    CHECK(host_backed(host) == 0);
    CHECK(host.state() == "awake");
    CHECK(host.report("gate/state") == "open");
    host.check_whole();
}

TEST_CASE("Live: when memory for the next piece cannot be made, what has moved stays there", "[live]") {
    LoadedHost host(captured({"GPU_SLEEP_SIM_DEVICES=2"}));
    host.tell("alloc weights 4194304 1"); // of another device: a piece of its own
    host.tell("fail cuMemCreate 2 999");
    const auto moved = ended(go_live(host), 1);
    CHECK_THAT(moved.out, mentions("before that, 4.00 MiB moved to host memory, and stay there"));
    CHECK(host.report("tags/0/host_backed_bytes tags/1/host_backed_bytes") == "4194304 0");
    host.check_whole();
    REQUIRE(go_live(host).status == 0);
    host.tell("fail cuMemCreate 2 999"); // on the way back
    CHECK(host.command("gpu-wake").status == 1);
    CHECK(host.report("tags/0/host_backed_bytes tags/1/host_backed_bytes") == "0 4194304");
    host.check_whole();
    REQUIRE(go_live(host).status == 0);
    host.wake(); // in two pieces
    CHECK(host_backed(host) == 0);
    host.check_whole();
}

TEST_CASE("Live: what is asked for amid a move waits for its turn", "[live]") {
    DeepMachine machine({"GPU_SLEEP_SIM_DELAY=cuMemCreate:2s"});
    Process moving(machine.launch("gpu-sleep", {"--live"}));
    await_request(moving);
    const auto second = machine.command("gpu-sleep", {"--live", "--timeout", "100ms"});
    CHECK(second.json(k_code_of_error) == "timed_out");
    CHECK_THAT(second.out, mentions("move of the process is still under way"));
    machine.fall_asleep();
    CHECK(moving.finish().status == 0);
    machine.wake({"--live-bytes", "0"});
    CHECK(host_backed(machine.host) > 0); // it had moved before it slept
    machine.expect_works();
}
