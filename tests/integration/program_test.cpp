// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's part in it: callbacks, holds, captures, long kernels, and how it ends.

#include "place.hpp"
#include "support/tree.hpp"

using namespace gpu_sleep::test;

TEST_CASE("Program: callbacks are told of what falls asleep and wakes", "[quick][threads][program]") {
    TwoTagHost host;
    REQUIRE(host.command("gpu-sleep", {"--tags", "weights"}).status == 0);
    host.tell("callback obey");
    CHECK(host.command("gpu-sleep", {"--tags", "weights", "--level", "2"}).status == 0);
    CHECK(host.command("gpu-ps", {"--json"}).tag("weights", "kept_bytes") == "0");
    CHECK(host.tell("calls") == "0 0 0 0");
    CHECK(host.command("gpu-sleep", {"--level", "2"}).status == 0); // the other tag
    CHECK(host.tell("calls") == "1 0 2 1");
    REQUIRE(host.command("gpu-wake").status == 0);
    CHECK(host.tell("calls") == "1 1 0 2");
    host.tell("callback none");
    REQUIRE(host.command("gpu-sleep").status == 0);
    CHECK(host.tell("calls").substr(0, 3) == "0 0");
}

TEST_CASE("Program: a late callback ends the sleep in time with 4, and the next waits for it", "[program]") {
    TwoTagHost host;
    const bool has_deadline = GENERATE(false, true);
    host.tell(has_deadline ? "callback linger 200" : "callback linger 0");
    const auto start = Clock::now();
    const auto late = host.command("gpu-sleep", {"--timeout", has_deadline ? "30s" : "400ms"});
    CHECK(Clock::now() - start < Milliseconds(10'000));
    CHECK(late.status == 4);
    CHECK(host.state() == "awake");
    CHECK(host.command("gpu-sleep", {"--timeout", "100ms"}).status == 4); // it still runs
    CHECK(host.tell("calls").substr(0, 3) == "1 0");
    host.tell("let_go");
    CHECK(becomes_true([&] { return host.tell("calls").substr(0, 3) == "1 1"; }));
    host.check_unharmed();
}

TEST_CASE("Program: a sleep waits for a capture that it sees, and names one that it breaks", "[program]") {
    LoadedHost host;
    host.tell("alloc kv_cache 4194304 0");
    host.tell("capture blocking 0 1");
    CHECK(ended(host.command("gpu-sleep", {"--timeout", "300ms", "--json"}), 4)
              .json("/processes/0/error/code") == "capture_in_progress");
    auto waiting = host.start("gpu-sleep");
    await_request(waiting);
    pause_for(Milliseconds(100));
    host.tell("capture_end");
    CHECK(waiting.finish().status == 0);
    REQUIRE(host.command("gpu-wake").status == 0);
    CHECK(host.tell("replay 1") == "intact");
    host.tell("capture nonblocking 0 1");
    check_ended(host.command("gpu-sleep", {"--timeout", "300ms"}), 4, mentions("gpu_sleep_hold"));
    CHECK_THAT(host.ask("capture_end"), mentions("error"));
    host.tell("capture blocking 0 1");
    host.tell("capture_end");
    CHECK(host.tell("replay 1") == "intact");
    host.check_unharmed();
}

TEST_CASE("Program: a context of its own is warned of once, and may go", "[program]") {
    Host host;
    host.tell("own_context");
    CHECK_THAT(host.process().errors(), mentions("context of its own"));
    host.tell("alloc weights 4194304 0");
    host.check_unharmed();
}

TEST_CASE("Program: it may end at any time, and its socket goes with it", "[program]") {
    TwoTagHost host;
    const auto socket = socket_file(host.pid());
    CHECK(std::filesystem::exists(socket));
    SECTION("awake") {}
    SECTION("asleep") {
        REQUIRE(host.command("gpu-sleep").status == 0);
    }
    SECTION("with a callback that hangs") {
        host.tell("callback linger");
        CHECK(host.command("gpu-sleep", {"--timeout", "100ms"}).status == 4);
    }
    host.process().send("exit 3");
    CHECK(host.wait() == 3);
    CHECK_FALSE(std::filesystem::exists(socket));
}

TEST_CASE("Program: its signal handlers never run on the agent's threads", "[program]") {
    TwoTagHost host;
    host.tell("callback obey"); // the thread for callbacks is there as well
    host.tell("block");
    auto sleeping = host.start("gpu-sleep");
    host.process().signal(SIGUSR1);
    CHECK(sleeping.finish().status == 0);
    CHECK(host.command("gpu-wake").status == 0);
    CHECK(host.tell("signals") == "0");
    CHECK(host.tell("unblock") == "1");
    host.check_unharmed();
}

TEST_CASE("Program: its socket does not come back while its destructors take their time", "[program]") {
    Host host;
    host.tell("slow_exit 3000"); // longer than the agent looks away from its socket
    host.tell("alloc weights 4194304 0");
    const auto socket = socket_file(host.pid());
    host.process().send("exit 3");
    REQUIRE(becomes_true([&] { return !std::filesystem::exists(socket); }));
    CHECK(host.wait() == 3);
    CHECK_FALSE(std::filesystem::exists(socket));
}

TEST_CASE("Program: a child that nobody heard of leaves the agent's files, and another ends", "[program]") {
    if (is_sanitized()) return skip("a sanitizer looks for leaks in the child");
    LoadedHost host({"GPU_SLEEP_HOST_BUDGET=1125899906842624"}); // the account is read then
    CHECK(host.tell("raw_fork") == "0");
    CHECK(std::filesystem::exists(socket_file(host.pid())));
    host.check_unharmed();
    CHECK(host.tell("fork_while_sleeping 200") == "200"); // they can use the API and end
}

TEST_CASE("Program: a process that is ending is said to be, and not to have failed", "[program]") {
    Host host;
    const bool is_slow = GENERATE(false, true);
    if (is_slow) host.tell("slow_exit 3000"); // after the agent has heard of the end
    host.tell("alloc weights 4194304 0");
    const auto check_is_told = [](const Output& output) {
        CHECK(output.status == 3);
        CHECK(output.json("/processes/0/error/code") == "no_process");
        CHECK_THAT(output.err, mentions("the process is ending") && !mentions("restart"));
    };
    if (!is_slow) {
        host.tell("fail cuMemcpyDtoHAsync 1 4"); // CUDA_ERROR_DEINITIALIZED
        check_is_told(host.command("gpu-sleep", {"--json"}));
        CHECK(host.tell("check_all") == "intact");
        return;
    }
    host.tell("hold");
    auto waiting = host.start("gpu-sleep", {"--json", "--timeout", "1s"});
    await_request(waiting);
    host.process().send("exit 0");
    check_is_told(waiting.finish());
    CHECK(host.wait() == 0);
}

TEST_CASE("Program: a command that comes before the agent is ready waits until it is", "[program]") {
    if (is_sanitized()) return skip("a sanitizer's runtime comes first");
    Host host({"LD_PRELOAD=" + library_file("libslow_start.so")});
    host.process().send("alloc weights 4194304 0");
    REQUIRE(becomes_true([&] { return std::filesystem::exists(socket_file(host.pid())); }));
    CHECK(host.command("gpu-wake").status == 0);
    CHECK(host.process().read_line().substr(0, 2) == "ok");
    host.check_unharmed();
}
