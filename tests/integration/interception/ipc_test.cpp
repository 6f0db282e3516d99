// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Legacy CUDA IPC of intercepted memory: other processes open it, it stays where it is, and all else sleeps.

#include "intercepted_host.hpp"

#include <fmt/format.h>

using namespace gpu_sleep::test;

namespace {

constexpr std::uint64_t k_small = 64 << 10; // shares a range with others

} // namespace

TEST_CASE("IPC: another process opens intercepted memory, which stays as the rest sleeps", "[quick][ipc]") {
    const auto way = GENERATE(k_linked, k_runtime);
    const auto bytes = GENERATE(k_piece_bytes, k_small);
    INFO(way.name << ", " << bytes << " bytes");
    Captured giver(way), taker(way);
    auto private_to_giver = make_piece(giver, "plain", k_piece_bytes);
    const auto neighbour = make_piece(giver, "plain", bytes); // so that a small one is not the first
    auto given = make_piece(giver, "plain", bytes);
    const auto private_to_taker = make_piece(taker, "plain", k_piece_bytes);
    const auto handle = giver.tell("share " + given.number);
    CHECK(giver.tell("share " + given.number) == handle);

    const auto opened = open_piece(taker, handle, bytes);
    CHECK(opened.hash == given.hash);
    const auto again = open_piece(taker, handle, bytes);
    CHECK(again.address == opened.address);

    const auto before = free_bytes(giver);
    REQUIRE(giver.command("gpu-sleep").status == 0);
    CHECK(free_bytes(giver) > before);
    CHECK(giver.report("residual/0/kind") == "ipc");
    given.hash = taker.tell("launch " + opened.number + " 3"); // works on it meanwhile
    REQUIRE(giver.command("gpu-wake").status == 0);
    for (const auto& piece : {given, private_to_giver, neighbour}) check_intact(giver, piece);

    taker.cycle();
    check_intact(taker, private_to_taker);
    CHECK(taker.tell("hash " + opened.number) == given.hash);
    given.hash = giver.tell("launch " + given.number + " 5");
    CHECK(taker.tell("hash " + again.number) == given.hash);

    taker.tell("free " + again.number); // closes it once
    CHECK(taker.tell("hash " + opened.number) == given.hash);
    taker.tell("free " + opened.number);
    CHECK(taker.report("residual/0/kind") == "none");
    giver.tell("free " + given.number);
    CHECK(giver.report("residual/0/kind") == "none"); // though its range may live on
    giver.cycle();
}

TEST_CASE("IPC: a process that is being put to sleep shares at once, and tells how it was", "[ipc]") {
    Captured giver(k_runtime, {"GPU_SLEEP_SIM_DELAY=cuMemcpyDtoHAsync:6s"});
    Captured taker(k_runtime);
    taker.tell("start");
    const auto given = make_piece(giver, "plain", k_piece_bytes);
    static_cast<void>(make_piece(giver, "plain", k_piece_bytes)); // which sleeps
    const auto handle = giver.tell("share " + given.number);
    auto sleeping = giver.start("gpu-sleep", {"--json"});
    CHECK(becomes_true([&] {
        const auto told = giver.command("gpu-ps", {"--json"});
        return told.out.find("contents are being moved") != std::string::npos &&
               told.json("/processes/0/report/residual/0/kind") == "ipc";
    }));
    const auto start = Clock::now();
    CHECK(open_piece(taker, handle, k_piece_bytes).hash == given.hash);
    CHECK(Clock::now() - start < Milliseconds(4000));
    CHECK(sleeping.finish().json("/processes/0/report/changed") == "true");
    CHECK(giver.command("gpu-wake").status == 0);
    check_intact(giver, given);
}

TEST_CASE("IPC: who opens memory of a process that is stopped waits until it goes on", "[ipc]") {
    Captured giver(k_runtime), taker(k_runtime);
    taker.tell("start");
    const auto given = make_piece(giver, "plain", k_piece_bytes);
    const auto handle = giver.tell("share " + given.number);
    giver.process().signal(SIGSTOP);
    taker.process().send(fmt::format("open {} {}", handle, k_piece_bytes));
    CHECK_FALSE(taker.process().has_output_within(Milliseconds(400))); // a debugger's look at it, say
    giver.process().signal(SIGCONT);
    CHECK(taker.process().read_line().starts_with("ok "));
}

TEST_CASE("IPC: memory that stays from now on retains no host memory for a sleep that never comes", "[ipc]") {
    Captured giver(k_runtime);
    const auto retained = [&] {
        const auto told = giver.command("gpu-ps", {"--json"});
        return std::stoull(told.json("/processes/0/report/retained_bytes"));
    };
    const auto neighbour = make_piece(giver, "plain", k_piece_bytes);
    giver.cycle();
    const auto alone = retained();
    CHECK(alone > 0);
    const auto given = make_piece(giver, "plain", k_piece_bytes);
    giver.cycle();
    CHECK(retained() > alone);
    static_cast<void>(giver.tell("share " + given.number));
    CHECK(retained() == alone);
    giver.cycle();
    check_intact(giver, given);
    check_intact(giver, neighbour);
}

TEST_CASE("IPC: memory that is freed while it is open elsewhere is still there", "[ipc]") {
    Captured giver(k_runtime), taker(k_runtime);
    const auto given = make_piece(giver, "plain", k_piece_bytes);
    const auto handle = giver.tell("share " + given.number);
    const auto opened = open_piece(taker, handle, k_piece_bytes);
    giver.tell("free " + given.number);
    CHECK(taker.tell("hash " + opened.number) == given.hash);
    taker.tell("free " + opened.number);
    static_cast<void>(make_piece(giver, "plain", k_piece_bytes)); // may lie where the other lay
    CHECK(taker.ask(fmt::format("open {} {}", handle, k_piece_bytes)).substr(0, 6) == "error ");
}

TEST_CASE("IPC: what is closed during a capture goes when that ends", "[ipc]") {
    Captured giver(k_runtime), taker(k_runtime);
    giver.tell("start");
    const auto before = free_bytes(giver);
    const auto given = make_piece(giver, "plain", k_piece_bytes);
    const auto opened = open_piece(taker, giver.tell("share " + given.number), k_piece_bytes);
    const auto from = make_piece(taker, "plain", k_piece_bytes);
    const auto to = make_piece(taker, "plain", k_piece_bytes);
    giver.tell("free " + given.number);
    taker.tell(fmt::format("capture {} {}", from.number, to.number));
    taker.tell("close " + opened.number);
    taker.tell("end_capture");
    CHECK(taker.tell("replay " + to.number) != to.hash);
    check_intact(taker, from);
    taker.tell("free " + from.number);
    taker.tell("free " + to.number);
    CHECK(free_bytes(giver) == before);
}

TEST_CASE("IPC: what is open outlives the process that shared it; no more of it can be opened", "[ipc]") {
    Captured giver(k_runtime), taker(k_runtime), late(k_runtime);
    const auto given = make_piece(giver, "plain", k_piece_bytes);
    const auto handle = giver.tell("share " + given.number);
    const auto opened = open_piece(taker, handle, k_piece_bytes);
    giver.kill();
    static_cast<void>(make_piece(taker, "plain", k_piece_bytes)); // something that sleeps
    taker.cycle();
    CHECK(taker.tell("hash " + opened.number) == given.hash);
    CHECK(late.ask(fmt::format("open {} {}", handle, k_piece_bytes)).substr(0, 6) == "error ");
    taker.tell("free " + opened.number);
}

TEST_CASE("IPC: a sleeping allocation is shared once it is awake", "[ipc]") {
    Captured giver(k_linked), taker(k_linked);
    const auto given = make_piece(giver, "plain", k_piece_bytes);
    REQUIRE(giver.command("gpu-sleep").status == 0);
    giver.process().send("share " + given.number);
    CHECK(giver.waits_at_the_gate());
    REQUIRE(giver.command("gpu-wake").status == 0);
    const auto answer = giver.process().read_line();
    REQUIRE(answer.substr(0, 3) == "ok ");
    CHECK(open_piece(taker, answer.substr(3), k_piece_bytes).hash == given.hash);
}

TEST_CASE("IPC: what the driver refuses fails, and can be tried again", "[ipc]") {
    const std::string call = GENERATE("cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
                                      "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess");
    INFO(call);
    const auto failing = fmt::format("GPU_SLEEP_SIM_FAIL={}:1:2", call); // with CUDA_ERROR_OUT_OF_MEMORY
    const bool is_export = call == "cuMemExportToShareableHandle";
    Captured giver(k_runtime, is_export ? Arguments{failing} : Arguments{});
    Captured taker(k_runtime, is_export ? Arguments{} : Arguments{failing});
    const auto given = make_piece(giver, "plain", k_piece_bytes);
    if (is_export) {
        CHECK(giver.ask("share " + given.number).substr(0, 6) == "error ");
        giver.sleep();
        CHECK(giver.state() == "asleep"); // so it was not pinned
        giver.wake();
    }
    const auto handle = giver.tell("share " + given.number);
    taker.tell("start");
    const auto before = free_bytes(taker);
    if (!is_export)
        CHECK(taker.ask(fmt::format("open {} {}", handle, k_piece_bytes)).substr(0, 6) == "error ");
    const auto opened = open_piece(taker, handle, k_piece_bytes);
    CHECK(opened.hash == given.hash);
    taker.tell("free " + opened.number);
    CHECK(free_bytes(taker) == before);
    check_intact(giver, given);
}

TEST_CASE("IPC: a handle opens nothing where it must not", "[ipc]") {
    Captured giver(k_runtime);
    const auto given = make_piece(giver, "plain", k_piece_bytes);
    const auto handle = giver.tell("share " + given.number);
    const auto refused = [](Host& host, const std::string& text) {
        return host.ask(fmt::format("open {} {}", text, k_piece_bytes)).substr(0, 6) == "error ";
    };
    CHECK(refused(giver, handle)); // as the driver: a process does not open its own
    Captured taker(k_runtime);
    taker.tell("start");
    for (std::size_t i = 0; i < handle.size(); i += 2) {
        auto forged = handle;
        forged[i] = forged[i] == '0' ? '1' : '0';
        INFO(i);
        CHECK((refused(taker, forged) || i >= 2 * 56)); // the last eight bytes say nothing
    }
    Host plain(plain_launch(k_runtime));
    CHECK(refused(plain, handle));
    check_intact(giver, given);
}
