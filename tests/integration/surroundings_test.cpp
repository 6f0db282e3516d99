// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What happens around a process: a debugger that stops it or traces it, and a clock that jumps.

#include "support/host.hpp"
#include "support/tree.hpp"

using namespace gpu_sleep::test;

namespace {

bool has_debugger() {
    return run({{"/bin/sh", "-c", "command -v gdb"}}).status == 0;
}

/// gdb, attached to the process and told what to do; it ends when that is done.
Process debug(const Host& host, const Arguments& orders) {
    Arguments command{"gdb", "-q", "-nx", "-batch", "-p", std::to_string(host.pid())};
    for (const auto& order : orders) {
        command.emplace_back("-ex");
        command.push_back(order);
    }
    return Process(Launch{std::move(command)});
}

void read_up_to(Process& process, std::string_view word) {
    while (process.read_line().find(word) == std::string::npos) {
    }
}

void sleep_and_wake(Host& host, const Arguments& how = {}) {
    REQUIRE(host.command("gpu-sleep", how).status == 0);
    CHECK(host.state() == "asleep");
    host.wake_whole();
}

} // namespace

TEST_CASE("Surroundings: a process that a debugger stopped is given up in time, whole", "[surroundings]") {
    if (!has_debugger()) return skip("there is no gdb");
    Host host;
    host.tell("alloc weights 33554432 0");
    const bool sleeps = GENERATE(false, true);
    if (sleeps) REQUIRE(host.command("gpu-sleep").status == 0);
    const std::string name = sleeps ? "gpu-wake" : "gpu-sleep";
    auto debugger = debug(host, {"echo attached\\n", "shell cat > /dev/null", "detach"});
    read_up_to(debugger, "attached");
    const auto start = Clock::now();
    const auto given_up = ended(host.command(name, {"--timeout", "1s"}), 4);
    CHECK(Clock::now() - start < Milliseconds(30'000));
    debugger.close_input();
    CHECK(debugger.wait() == 0);
    REQUIRE(becomes_true([&] { return host.command(name).status == 0; }));
    CHECK(host.state() == (sleeps ? "awake" : "asleep"));
    host.wake_whole();
    sleep_and_wake(host);
}

TEST_CASE("Surroundings: a process sleeps and wakes under a debugger with breakpoints", "[surroundings]") {
    if (!has_debugger()) return skip("there is no gdb");
    std::optional<Process> debugger;
    {
        Host host;
        host.tell("alloc weights 33554432 0");
        debugger.emplace(debug(host, {"set pagination off", "dprintf cuMemUnmap,\"unmapped\\n\"",
                                      "dprintf cuMemCreate,\"created\\n\"", "echo attached\\n", "continue"}));
        read_up_to(*debugger, "attached");
        for (int round = 0; round < 3; ++round) sleep_and_wake(host);
    }
    const auto told = debugger->finish();
    CHECK_THAT(told.out, mentions("unmapped") && mentions("created") && mentions("exited normally"));
}

TEST_CASE("Surroundings: a clock that jumps changes no limit and no contents", "[surroundings]") {
    if (is_sanitized()) return skip("a sanitizer's runtime comes first");
    const std::string jumping = "LD_PRELOAD=" + library_file("libjumping_clock.so");
    const Scratch scratch;
    Host host({jumping});
    host.tell("alloc weights 33554432 0");
    sleep_and_wake(host);
    sleep_and_wake(host, {"--store", "file", "--dir", scratch.path()});
    const auto command = [&](const std::string& name, Arguments arguments) {
        Arguments all{command_file(name), std::to_string(host.pid())};
        all.insert(all.end(), arguments.begin(), arguments.end());
        const auto start = Clock::now();
        const auto status = run({std::move(all), {jumping}}).status;
        CHECK(Clock::now() - start < Milliseconds(20'000));
        return status;
    };
    CHECK(command("gpu-sleep", {}) == 0);
    CHECK(command("gpu-ps", {}) == 0);
    CHECK(command("gpu-wake", {"--wait", "1s"}) == 0);
    host.tell("hold");
    const auto start = Clock::now();
    CHECK(command("gpu-sleep", {"--timeout", "700ms"}) == 4);
    CHECK(Clock::now() - start >= Milliseconds(600));
    host.tell("resume");
    host.tell("callback linger 300");
    CHECK(command("gpu-sleep", {}) != 0);
    host.tell("let_go");
    host.tell("callback none");
    sleep_and_wake(host);
    CHECK(std::stod(host.report("state_seconds")) < 60);
}
