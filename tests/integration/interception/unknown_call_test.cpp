// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Programs that call an entry point of the driver which this build does not know: a sleep refuses, unless
// forced.

#include "intercepted_host.hpp"

using namespace gpu_sleep::test;

namespace {

const std::string k_called = "calls to the driver that this version does not know (cuFutureSubmit)";

} // namespace

TEST_CASE("Unknown call: a look-up is none, and a call is named and makes a sleep refuse", "[unknown_call]") {
    const std::string how = GENERATE("look_up symbol", "look_up driver");
    INFO(how);
    Captured host(k_runtime);
    auto piece = make_piece(host, "plain", k_piece_bytes);
    host.tell(how);
    CHECK(host.tell(how) == "same");
    host.cycle();
    CHECK_THAT(host.command("gpu-ps").out, !mentions("cannot see"));

    piece.hash = host.tell("submit 0");
    CHECK(host.tell("submit 0") == piece.hash); // the second call, which goes straight on
    const auto before = free_bytes(host);
    const auto refused = ended(host.command("gpu-sleep"), 1);
    CHECK_THAT(refused.err, mentions(k_called));
    CHECK(host.state() == "awake");
    CHECK(free_bytes(host) == before);
    CHECK_THAT(host.command("gpu-sleep", {"--dry-run"}).out,
               mentions(k_called + "; refused without --force"));
    CHECK_THAT(host.command("gpu-ps").out, mentions(k_called));

    host.sleep({"--force"});
    CHECK(host.state() == "asleep");
    CHECK(free_bytes(host) > before);
    host.wake();
    check_intact(host, piece);
}

TEST_CASE("Unknown call: the first one waits while the process sleeps, or is refused", "[unknown_call]") {
    Captured host(k_runtime);
    auto piece = make_piece(host, "plain", k_piece_bytes);
    host.tell("look_up driver");
    host.sleep({"--on-touch", "fail"});
    CHECK(host.ask("submit 0").substr(0, 6) == "error ");
    CHECK(host.state() == "asleep");
    host.wake();
    check_intact(host, piece);

    host.sleep(); // what was refused was not called
    host.process().send("submit 0");
    REQUIRE(host.waits_at_the_gate());
    CHECK(host.state() == "asleep");
    host.wake();
    CHECK(host.process().read_line().substr(0, 3) == "ok ");
    CHECK(host.command("gpu-sleep").status == 1);
}

TEST_CASE("Unknown call: one that only the driver's look-up has, but is known, is none", "[unknown_call]") {
    Captured host(k_runtime); // it asks the look-up for every name
    const auto from = make_piece(host, "plain", k_piece_bytes);
    static_cast<void>(make_piece(host, "plain", k_piece_bytes));
    host.tell("capture 0 1");
    host.tell("end_capture"); // cuGraphInstantiate
    const auto replayed = host.tell("replay 1");
    host.cycle();
    check_intact(host, from);
    CHECK(host.tell("replay 1") == replayed);
}

TEST_CASE("Unknown call: what only asks, and who is not intercepted, are let be", "[unknown_call]") {
    Captured host(k_runtime);
    const auto piece = make_piece(host, "plain", k_piece_bytes);
    CHECK(host.tell("ask_version") != "0");
    host.cycle();
    check_intact(host, piece);

    Host plain(preloaded_launch(k_dlsym, {}));
    static_cast<void>(make_piece(plain, "plain", k_piece_bytes));
    plain.tell("look_up symbol");
    CHECK(plain.tell("submit 0").size() == 16);
}
