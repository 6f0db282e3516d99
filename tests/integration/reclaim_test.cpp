// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Idleness as the agent sees it, and gpu-reclaim, which puts to sleep what is idle.

#include "empty_tmp.hpp"
#include "support/configuration.hpp"
#include "support/host.hpp"
#include "support/tree.hpp"

#include <fmt/format.h>

#include <regex>

using namespace gpu_sleep::test;

namespace {

constexpr const char* k_changed = "/processes/0/report/changed";
constexpr const char* k_note = "/processes/0/report/notes/0";

double idle_seconds(const Host& host) {
    return std::strtod(host.report("idle_seconds").c_str(), nullptr);
}

Output reclaim(const Host& host, Arguments options = {}) {
    return ended(host.command("gpu-reclaim", with(std::move(options), {"--idle", "10ms", "--json"})));
}

/// Starts the command in a pid namespace of its own, with a /tmp of its own, among so many stubs. Nothing
/// where the test is skipped.
std::optional<Output> among_stubs(int count, int runs, Arguments command) {
    const Arguments apart{"unshare",
                          "--user",
                          "--map-root-user",
                          "--pid",
                          "--fork",
                          "--mount-proc",
                          "--mount",
                          "sh",
                          "-c",
                          mount_empty_tmp() + " && exec \"$@\"",
                          "sh"};
    auto probe = apart;
    probe.emplace_back("true");
    if (run({probe}).status != 0) {
        skip_without_right("make a pid namespace");
        return std::nullopt;
    }
    auto words = apart;
    words.insert(words.end(), {command_file("stub_agents"), std::to_string(count), std::to_string(runs)});
    if (command.front().starts_with("gpu-")) command.front() = command_file(command.front());
    return run({with(std::move(words), command)});
}

/// The command of the line for cron that is installed, with the built commands in place of the installed
/// ones.
std::string cron_command() {
    const std::regex form(R"~((?:\S+ ){5}"@GPU_SLEEP_BINDIR@/(.*)"(.*))~");
    std::ifstream file(source_file("cli/timer/gpu-reclaim.crontab.in"));
    std::smatch match;
    for (std::string line; std::getline(file, line);)
        if (std::regex_match(line, match, form))
            return '"' + command_file(match[1].str()) + '"' + match[2].str();
    FAIL("there is no line for cron");
    return {};
}

/// What stub_agents says of its command, and what that printed.
struct Timed {
    double seconds = 0;
    Output output;
};

Timed timed(const Output& all) {
    Timed found;
    std::istringstream text(all.out);
    text >> found.seconds >> found.output.status;
    found.output.out = all.out.substr(all.out.find('\n') + 1);
    return found;
}

} // namespace

TEST_CASE("Idle: is counted from the end of the work, not from when it was given", "[reclaim]") {
    constexpr Milliseconds k_work{5'000};
    LoadedHost host(captured());
    become_idle(host);
    const auto start = Clock::now();
    host.tell(fmt::format("spin {}", k_work.count()));
    double worked = 0;
    CHECK(becomes_true([&] {
        const auto before = seconds_since(start);
        if (idle_seconds(host) > 0) return true;
        worked = before;
        return false;
    }));
    const auto idle = idle_seconds(host);
    INFO("it was seen to work " << worked << " s after it began");
    CHECK(seconds_since(start) - idle >= std::chrono::duration<double>(k_work).count());
}

TEST_CASE("Idle: a program that captures is at work, and its capture is whole", "[reclaim]") {
    LoadedHost host(captured());
    host.tell("alloc copy 4194304 0");
    host.tell("capture free 0 1");
    for (const auto end = Clock::now() + Milliseconds(5'000); Clock::now() < end;
         pause_for(Milliseconds(500)))
        CHECK(idle_seconds(host) == 0);
    CHECK(reclaim(host).json(k_note) == "it is not idle");
    host.tell("capture_end");
    host.tell("replay 1");
    become_idle(host);
    host.check_whole();
}

TEST_CASE("Idle: is not known of a program whose calls are not intercepted", "[reclaim]") {
    LoadedHost host;
    CHECK(host.report("idle_seconds") == "null");
    const auto output = reclaim(host);
    CHECK(output.json(k_changed) == "false");
    CHECK(output.json(k_note) == "it is not known whether it is idle");
    CHECK(host.state() == "awake");
    host.tell("sleep 1");
    if (!reads_configurations()) return;
    const Scratch place; // asleep counts as idle, and its contents move
    const Configuration files(
        fmt::format("[reclaim]\nidle = \"10ms:file\"\ndirectory = \"{}\"\n", place.file("files")));
    CHECK(becomes_true([&] {
        return host.command("gpu-reclaim", {"--config", files.file(), "--json"}).json(k_changed) == "true";
    }));
}

TEST_CASE("Reclaim: what is idle sleeps until it is used, and is idle no more", "[quick][threads][reclaim]") {
    LoadedHost host(captured());
    become_idle(host);
    CHECK(reclaim(host, {"--dry-run"}).json("/processes/0/report/devices/0/moved_bytes") == "4194304");
    CHECK(host.state() == "awake");
    CHECK(ended(host.command("gpu-reclaim", {"--idle", "1h", "--json"})).json(k_changed) == "false");
    CHECK(reclaim(host).json(k_changed) == "true");
    CHECK(host.state() == "asleep");
    CHECK(host.report("gate/on_touch") == "wake");
    CHECK(reclaim(host).json("/processes/0/report/refusal") == "it is already asleep");
    CHECK(host.state() == "asleep");
    host.tell("spin 1"); // a touch
    CHECK(host.state() == "awake");
    CHECK(idle_seconds(host) == 0);
    host.check_whole();
}

TEST_CASE("Reclaim: who works again while it is put to sleep stays awake", "[reclaim]") {
    Host host(captured());
    host.tell("alloc weights 33554432 0");
    SECTION("while its callbacks are asked") {
        host.tell("callback linger");
        become_idle(host);
        auto pass = host.start("gpu-reclaim", {"--idle", "10ms", "--json"});
        REQUIRE(becomes_true([&] { return host.tell("calls").starts_with("1 "); }));
        host.tell("spin 1");
        host.tell("let_go");
        const auto output = ended(pass.finish());
        CHECK(output.json(k_changed) == "false");
        CHECK(output.json(k_note) == "it is no longer idle");
        CHECK(host.tell("calls").starts_with("1 1 ")); // it has heard that no sleep came
    }
    SECTION("while contents are moved") {
        host.tell("delay cuMemcpyDtoHAsync 2000000");
        become_idle(host);
        auto pass = host.start("gpu-reclaim", {"--idle", "10ms", "--json"});
        REQUIRE(becomes_true([&] { return host.moves_contents(); }));
        host.tell("spin 1");
        const auto output = ended(pass.finish());
        CHECK(output.json(k_changed) == "false");
        CHECK(output.json(k_note) == "it is no longer idle");
        host.tell("delay cuMemcpyDtoHAsync 0");
    }
    CHECK(host.state() == "awake");
    host.check_whole();
}

TEST_CASE("Reclaim: callbacks that use the GPU do not keep their program awake", "[reclaim]") {
    LoadedHost host(captured());
    host.tell("callback touch");
    become_idle(host);
    const auto output = reclaim(host);
    INFO(output.json(k_note));
    CHECK(output.json(k_changed) == "true");
    CHECK(host.state() == "asleep");
}

TEST_CASE("Reclaim: why a program does not sleep, and how it would, is told without a change", "[reclaim]") {
    LoadedHost host(captured());
    const auto why = [&](Arguments options) {
        options.emplace_back("--why");
        const auto output = ended(host.command("gpu-reclaim", std::move(options)));
        CHECK(host.state() == "awake");
        return output;
    };
    become_idle(host);
    CHECK_THAT(why({"--idle", "1h"}).out, mentions("prevented by: it has been idle for"));
    CHECK_THAT(why({}).out, mentions("nothing prevents it"));
    host.tell("hold");
    CHECK_THAT(why({}).out, mentions("would free 4.00 MiB") &&
                                mentions("prevented by: the program holds sleeps back (gpu_sleep_hold)"));
    host.tell("resume");
    REQUIRE(host.command("gpu-inhibit").status == 0);
    CHECK_THAT(why({}).out, mentions("prevented by: sleeps are inhibited"));
    REQUIRE(host.command("gpu-sleep", {"--ignore-inhibitors"}).status == 0);
    REQUIRE(host.command("gpu-wake").status == 0);
    const auto json = why({"--json"});
    CHECK(json.json("/processes/0/report/devices/0/moved_bytes") == "4194304");
    CHECK(json.json("/processes/0/report/woken_bytes") == "4194304");
    CHECK(json.json(k_note) == "sleeps are inhibited");
    host.check_whole();
}

TEST_CASE("Reclaim: of a stopped program it is said once why nothing is known", "[reclaim]") {
    LoadedHost host;
    host.process().signal(SIGSTOP);
    const auto told = ended(host.command("gpu-reclaim", {"--why"}), 4).err;
    CHECK_THAT(told, mentions("kill -CONT"));
    CHECK(told.find("kill -CONT") == told.rfind("kill -CONT"));
    host.process().signal(SIGCONT);
}

TEST_CASE("Reclaim: nobody waits for a program that holds sleeps back, or is amid a change", "[reclaim]") {
    Host host(captured());
    host.tell("alloc weights 33554432 0");
    become_idle(host);
    host.tell("hold");
    CHECK(reclaim(host).json(k_note) == "the program holds sleeps back (gpu_sleep_hold)");
    host.tell("resume");
    host.tell("delay cuMemcpyDtoHAsync 2000000"); // longer than a busy machine takes for what follows
    auto sleep = host.start("gpu-sleep");
    REQUIRE(becomes_true([&] { return host.moves_contents(); }));
    CHECK_THAT(reclaim(host).out, mentions("another sleep, wake or move of it is under way"));
    CHECK(sleep.finish().status == 0);
    CHECK(host.state() == "asleep");
}

TEST_CASE("Reclaim: a pass tells of whom it put to sleep and of what failed, of nobody else", "[reclaim]") {
    const auto all = among_stubs(7, 1, {"gpu-reclaim", "--idle", "15m", "--json", "--timeout", "1s"});
    if (!all) return;
    const auto pass = timed(*all);
    INFO(all->err);
    CHECK(pass.seconds < 30);                              // one hangs, beside the others
    CHECK(pass.output.json("/processes/5/pid") != "none"); // all but the one that has ended
    CHECK(pass.output.json("/processes/6/pid") == "none");
    CHECK(pass.output.json("/processes/0/report/changed /processes/1/error/code") == "false timed_out");
    CHECK(pass.output.json("/processes/2/report/changed") == "false"); // it slept already
    CHECK(pass.output.json("/processes/3/error/code") == "driver_failed");
    CHECK(pass.output.json("/processes/4/report/changed /processes/5/report/changed") == "true true");
    CHECK(pass.output.status == 4);
    const auto idle_none = among_stubs(1, 1, {"gpu-reclaim", "--idle", "15m"}); // it is at work
    REQUIRE(idle_none);
    CHECK(timed(*idle_none).output.out == "nothing to do\n");
}

TEST_CASE("Reclaim: cron's line works without an environment and a terminal, in silence", "[reclaim]") {
    constexpr int k_late = 4; // what a pass ends with where the machine stood still for two seconds
    std::optional<Output> all;
    for (int tries = 0; tries < 3 && (!all || timed(*all).output.status == k_late); ++tries) {
        all = among_stubs(
            20, 1, {"env", "-i", "PATH=/usr/bin:/bin", "setsid", "--wait", "/bin/sh", "-c", cron_command()});
        if (!all) return;
    }
    INFO(all->err);
    CHECK(timed(*all).output.status == 0);
    CHECK(timed(*all).output.out.empty());
    CHECK(all->err.empty());
}

TEST_CASE("Reclaim: --why about all processes waits for each as long as --timeout says", "[reclaim]") {
    const auto all = among_stubs(2, 1, {"gpu-reclaim", "--why", "--timeout", "300ms"});
    if (!all) return;
    CHECK(timed(*all).output.status == 4);
    CHECK_THAT(all->err, mentions("the agent has not answered for 0.30 s"));
}

TEST_CASE("Reclaim: a pass over 200 processes takes less than 0.2 s", "[timed]") {
    const auto all = among_stubs(200, 15, {"gpu-reclaim", "--idle", "15m", "--json"});
    if (!all) return;
    const auto pass = timed(*all);
    CHECK(pass.output.status == 0);
    CHECK(pass.output.json("/processes/199/report/changed") == "true");
    CHECK(pass.seconds < 0.2); // the least of many
}

TEST_CASE("Wake: many that find too little room take no longer to ask who has it than one", "[reclaim]") {
    const auto all = among_stubs(50, 1, {"gpu-wake", "--all"});
    if (!all) return;
    CHECK(timed(*all).output.status == 7);
    CHECK(timed(*all).seconds < 20); // once is 2 s, because stubs that serve the command answer nobody else
}

TEST_CASE("Reclaim: that the GPU is asked about idleness does not end preparing", "[reclaim]") {
    Host host(captured({"GPU_SLEEP_PREPARE=7"})); // longer than until the GPU is asked
    host.tell("alloc weights 67108864 0");
    become_idle(host);
    const auto is_prepared = [&] { return host.report("retained_bytes") == "67108864"; };
    CHECK(becomes_true(is_prepared));
    host.check_whole();
}
