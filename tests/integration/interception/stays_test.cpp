// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What cannot sleep: virtual memory that processes share by its descriptors, where they sleep one by one, and
// arrays. It stays, is reported with its reason, and all else sleeps.

#include "intercepted_host.hpp"

#include <fmt/format.h>

using namespace gpu_sleep::test;

namespace {

/// What `fields` of the row of `kind` say; "none" without one.
std::string residual(Host& host, const std::string& kind, const std::string& fields) {
    const auto told = host.command("gpu-ps", {"--json"});
    for (int i = 0;; ++i) {
        const auto row = fmt::format("/processes/0/report/residual/{}/", i);
        const auto found = told.json(row + "kind");
        if (found == kind || found == "none") return told.json(fields, row);
    }
}

} // namespace

TEST_CASE("Stays: memory shared by a descriptor, whichever of its processes sleeps", "[quick][stays]") {
    const auto way = GENERATE(k_linked, k_runtime);
    INFO(way.name);
    Captured giver(way), taker(way);
    auto given = make_piece(giver, "shared", k_piece_bytes);
    const auto of_giver = make_piece(giver, "vmm2", k_piece_bytes);
    const auto of_taker = make_piece(taker, "plain", k_piece_bytes);
    CHECK(residual(giver, "virtual", "kind") == "none"); // until it is shared it is as any other
    const auto taken = import_piece(giver, taker, given, k_piece_bytes);
    CHECK(taken.hash == given.hash);
    CHECK(residual(giver, "shared", "reason bytes") == "shared with others 6291456");
    CHECK(residual(taker, "shared", "reason bytes") == "it belongs to another process 6291456");

    giver.sleep();
    given.hash = taker.tell("launch " + taken.number + " 3"); // works on it meanwhile
    giver.wake();
    taker.sleep();
    CHECK(giver.tell("hash " + given.number) == given.hash);
    taker.wake();
    giver.sleep();
    taker.sleep();
    giver.wake();
    taker.wake();
    check_intact(giver, given);
    check_intact(giver, of_giver);
    check_intact(taker, of_taker);
    CHECK(taker.tell("hash " + taken.number) == given.hash);

    taker.tell("free " + taken.number);
    CHECK(residual(taker, "shared", "kind") == "none");
    giver.cycle();
    check_intact(giver, given);
}

TEST_CASE("Stays: memory is exported once it is awake", "[stays]") {
    Captured giver(k_runtime), taker(k_runtime);
    const Scratch scratch;
    const auto path = scratch.file("socket");
    const auto given = make_piece(giver, "shared", k_piece_bytes);
    const auto private_to_giver = make_piece(giver, "plain", k_piece_bytes);
    giver.sleep();
    taker.process().send(fmt::format("import {} {}", path, k_piece_bytes));
    giver.process().send(fmt::format("export {} {}", given.number, path));
    CHECK(giver.waits_at_the_gate());
    giver.wake();
    CHECK(giver.process().read_line() == "ok ");
    REQUIRE(taker.process().read_line().substr(0, 5) == "ok 0 ");
    CHECK(taker.tell("hash 0") == given.hash);
    giver.sleep();
    CHECK(taker.tell("hash 0") == given.hash);
    giver.wake();
    check_intact(giver, given);
    check_intact(giver, private_to_giver);
}

TEST_CASE("Stays: handles of shared memory are released while it sleeps", "[stays]") {
    Captured giver(k_runtime), taker(k_runtime);
    const auto given = make_piece(giver, "shared", k_piece_bytes);
    const auto private_to_giver = make_piece(giver, "plain", k_piece_bytes);
    const auto private_to_taker = make_piece(taker, "plain", k_piece_bytes);
    const auto taken = import_piece(giver, taker, given, k_piece_bytes);
    giver.sleep();
    taker.sleep();
    giver.tell("release " + given.number);
    taker.tell("release " + taken.number);
    taker.wake();
    giver.wake();
    CHECK(taker.tell("hash " + taken.number) == given.hash);
    check_intact(giver, given);
    check_intact(giver, private_to_giver);
    check_intact(taker, private_to_taker);
    CHECK(residual(giver, "shared", "reason") == "shared with others"); // the mappings keep it
    CHECK(residual(taker, "shared", "reason") == "it belongs to another process");
    taker.tell("free " + taken.number);
    giver.tell("free " + given.number);
    CHECK(residual(giver, "shared", "kind") == "none");
    CHECK(residual(taker, "shared", "kind") == "none");
}

TEST_CASE("Stays: shared memory outlives either of its processes", "[stays]") {
    const bool kills_giver = GENERATE(false, true);
    Captured giver(k_runtime), taker(k_runtime);
    const auto given = make_piece(giver, "shared", k_piece_bytes);
    const auto private_to_giver = make_piece(giver, "plain", k_piece_bytes);
    const auto private_to_taker = make_piece(taker, "plain", k_piece_bytes);
    const auto taken = import_piece(giver, taker, given, k_piece_bytes);
    auto& survivor = kills_giver ? taker : giver;
    auto& killed = kills_giver ? giver : taker;
    survivor.sleep();
    killed.kill();
    survivor.wake();
    check_intact(survivor, kills_giver ? private_to_taker : private_to_giver);
    CHECK(survivor.tell("hash " + (kills_giver ? taken : given).number) == given.hash);
}

TEST_CASE("Stays: an array keeps what is in it, and is counted until it goes", "[stays]") {
    Captured host(k_runtime);
    const auto plain = make_piece(host, "plain", k_piece_bytes);
    const auto array = make_piece(host, "array", k_piece_bytes);
    CHECK(residual(host, "array", "bytes count") == std::to_string(k_piece_bytes) + " 1");
    host.sleep();
    CHECK(residual(host, "array", "reason") == "the driver alone knows where an array lies");
    host.wake();
    check_intact(host, array);
    check_intact(host, plain);
    const auto another = make_piece(host, "array", k_piece_bytes);
    CHECK(residual(host, "array", "count") == "2");
    host.tell("free " + array.number);
    CHECK(residual(host, "array", "count") == "1");
    check_intact(host, another);
    host.tell("reset");
    CHECK(residual(host, "array", "kind") == "none"); // it went with its context
}
