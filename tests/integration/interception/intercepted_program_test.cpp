// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The capture program itself, without the agent: what the other tests expect of it is the driver's doing.

#include "intercepted_host.hpp"

#include "support/catch.hpp"

#include <fmt/format.h>

#include <vector>

using namespace gpu_sleep;
using namespace gpu_sleep::test;

TEST_CASE("Intercepted program: it works without the agent, whichever way it reaches the driver",
          "[intercepted_program]") {
    const auto way = GENERATE(k_linked, k_dlsym, k_late, k_runtime, k_per_thread);
    if (!is_tested(way)) return;
    INFO(way.name);
    Host host(plain_launch(way));
    host.tell("start");
    const auto before = free_bytes(host);
    std::vector<Piece> pieces;
    for (const auto* kind :
         {"plain", "pitch", "managed", "async", "pool", "vmm2", "vmm20", "segments", "alias"})
        pieces.push_back(make_piece(host, kind, k_piece_bytes));
    CHECK(free_bytes(host) <= before - pieces.size() * k_piece_bytes);
    for (const auto& piece : pieces) check_intact(host, piece);
    CHECK(host.tell("copy 0 1") == pieces[0].hash);
    CHECK(host.tell("launch 0 1") != pieces[0].hash);
    const auto sum = host.tell("hash 0");
    for (const auto* kind : {"capture 5 4", "capture_allocation 5 4"}) {
        host.tell(kind);
        host.tell("end_capture");
        const auto replayed = host.tell("replay 4");
        CHECK(replayed != pieces[4].hash);
        CHECK(replayed != pieces[5].hash);
        CHECK(host.tell("replay 4") == replayed);
    }
    CHECK(host.tell("hash 0") == sum);
    CHECK(host.tell("query 0 8") ==
          fmt::format("type 2 device 0 from {} bytes {}", pieces[0].address, k_piece_bytes));
    CHECK(host.tell("fork") == "7");
    for (const auto& piece : pieces) host.tell("free " + piece.number);
    CHECK(host.ask("hash 0").substr(0, 5) == "error");
    CHECK(free_bytes(host) == before);
    check_no_harm(host);
}

TEST_CASE("Intercepted program: it has a default stream a thread when told to", "[intercepted_program]") {
    CHECK(Host(plain_launch(k_runtime)).tell("null_stream") == "shared");
    CHECK(Host(plain_launch(k_per_thread)).tell("null_stream") == "own");
    CHECK(Host(plain_launch(k_linked)).tell("null_stream") == "shared");
}
