// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Processes that refuse to be put to sleep.

#include "support/host.hpp"

using namespace gpu_sleep::test;

namespace {

constexpr const char* k_code = "/processes/0/error/code";

void inhibit(const Host& host, Arguments options = {}) {
    REQUIRE(succeeded(host.command("gpu-inhibit", std::move(options))));
}

void check_refused(const Host& host) {
    CHECK(ended(host.command("gpu-sleep", {"--json"}), 1).json(k_code) == "inhibited");
    CHECK(host.state() == "awake");
}

void check_sleeps(const Host& host, Arguments options = {}) {
    host.sleep(std::move(options));
    CHECK(host.state() == "asleep");
    CHECK(host.command("gpu-wake").status == 0);
}

} // namespace

TEST_CASE("Inhibit: a process refuses to be put to sleep until it is released", "[quick][inhibit]") {
    LoadedHost host;
    CHECK(host.report("inhibited") == "false");
    inhibit(host);
    CHECK(host.report("inhibited inhibited_seconds") == "true null");
    check_refused(host);
    CHECK_THAT(ended(host.command("gpu-sleep", {"--dry-run"}), 1).out,
               mentions("refused without --ignore-inhibitors"));
    check_sleeps(host, {"--ignore-inhibitors"});
    check_refused(host);
    inhibit(host, {"--release"});
    check_sleeps(host);
    host.check_whole();
}

TEST_CASE("Inhibit: for a time, of which the last call counts", "[inhibit]") {
    LoadedHost host;
    inhibit(host, {"--for", "4h"});
    const auto seconds = std::stod(host.report("inhibited_seconds"));
    CHECK(seconds > 4 * 3600 - 60);
    CHECK(seconds <= 4 * 3600);
    check_refused(host);
    inhibit(host, {"--for", "300ms"});
    CHECK(becomes_true([&] { return host.report("inhibited") == "false"; }));
    check_sleeps(host);
}

TEST_CASE("Inhibit: of a process that was stopped, who has given up since wants nothing", "[inhibit]") {
    LoadedHost host;
    host.process().signal(SIGSTOP);
    CHECK(host.command("gpu-inhibit").status == 4);
    host.process().signal(SIGCONT);
    CHECK(host.report("inhibited") == "false");
}

TEST_CASE("Inhibit: a program refuses by itself, and nobody else ends that", "[inhibit]") {
    LoadedHost host;
    CHECK(host.ask("uninhibit").starts_with("error"));
    host.tell("inhibit");
    host.tell("inhibit");
    inhibit(host, {"--release"});
    check_refused(host);
    host.tell("uninhibit");
    check_refused(host);
    host.tell("sleep 1"); // it may do so itself
    CHECK(host.state() == "asleep");
    host.tell("wake");
    host.tell("uninhibit");
    check_sleeps(host);
}

TEST_CASE("Inhibit: a command refuses for as long as it runs", "[inhibit]") {
    LoadedHost host({}, {command_file("gpu-inhibit"), "--"});
    CHECK(host.report("inhibited_seconds") == "null");
    check_refused(host);
    LoadedHost timed({}, {command_file("gpu-inhibit"), "--for", "1h", "--"});
    CHECK(std::stod(timed.report("inhibited_seconds")) > 3500);
    check_refused(timed);
    CHECK(run({{command_file("gpu-inhibit"), "--", "sh", "-c", "exit 7"}}).status == 7);
    check_ended(run({{command_file("gpu-inhibit"), "--", "no-such-command"}}), 127,
                mentions("there is no command no-such-command in PATH"));
    CHECK(run({{command_file("gpu-inhibit"), "--", "/nonexistent/command"}}).status == 127);
    CHECK(run({{command_file("gpu-inhibit"), "--", "/"}}).status == 126);
    CHECK(run({{command_file("gpu-inhibit"), "--json", "--", "true"}}).status == 2);
}
