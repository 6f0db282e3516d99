// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What each option of the commands does to a process, and the exit status of each outcome.

#include "base/text.hpp"
#include "stage.hpp"

#include <fmt/format.h>

using namespace gpu_sleep::test;

namespace {

/// Allocation 0 under `weights`, 1 under `kv_cache`, 2 (two small ones) under `default`.
void allocate_three_tags(Host& host) {
    host.tell("alloc weights 6291456 0");
    host.tell("alloc kv_cache 4194304 0");
    host.tell("alloc default 4096 0");
    host.tell("alloc default 8192 0");
}

} // namespace

TEST_CASE("Commands: level 1 keeps every byte and gives the memory back", "[quick][commands]") {
    Host host;
    allocate_three_tags(host);
    const auto address = host.tell("alloc weights 2097152 1");
    const auto slept = ended(host.command("gpu-sleep", {"--json"}));
    CHECK(slept.json("/schema /exit_status /processes/0/state /processes/0/report/level") == "1 0 asleep 1");
    CHECK(slept.json("0/moved_bytes 0/dropped_bytes 1/kept_bytes", "/processes/0/report/devices/") ==
          "12582912 0 2097152");
    CHECK(slept.tag("kv_cache", "kept_bytes") == "4194304");
    CHECK(host.tell("asleep") == "14680064");

    REQUIRE(host.command("gpu-wake").status == 0);
    CHECK(host.tell("asleep") == "0");
    host.check_whole();
}

TEST_CASE("Commands: level 2 drops what nothing preserves, and names tags without refill", "[commands]") {
    Host host;
    allocate_three_tags(host);
    host.tell("policy default preserve 0");
    host.tell("policy kv_cache offload 1");
    CHECK(host.command("gpu-sleep", {"--level", "2", "--require-refill"}).status == 1);
    const auto slept = ended(host.command("gpu-sleep", {"--level", "2"}));
    CHECK_THAT(slept.out, mentions("dropped with no declared refill: weights"));
    CHECK_THAT(slept.out, !mentions("kv_cache"));
    CHECK_THAT(slept.err, mentions("that it has not declared refillable: weights\n"));

    CHECK_THAT(ended(host.command("gpu-wake")).out,
               mentions("tag weights on GPU 0: dropped contents read as zeros") && !mentions("kv_cache on"));
    CHECK(host.tell("check 0") == "zero");
    CHECK(host.tell("check 1") == "zero");
    CHECK(host.tell("check 2") == "intact");
    CHECK(host.tell("check 3") == "intact");
    const auto listed = host.command("gpu-ps", {"--json"});
    CHECK(listed.tag("weights", "needs_refill") == "true");
    CHECK(listed.tag("default", "needs_refill") == "false");
    host.tell("refilled weights");
    CHECK(host.command("gpu-ps", {"--json"}).tag("weights", "needs_refill") == "false");
}

TEST_CASE("Commands: at a terminal, who would drop what is not refillable is asked first", "[commands]") {
    LoadedHost host;
    const auto answer = [&](const std::string& word) {
        const auto command = fmt::format("{} {} --level 2", command_file("gpu-sleep"), host.pid());
        Process asked({{"script", "-qec", command, "/dev/null"}});
        asked.send(word);
        return asked.finish();
    };
    for (const auto* word : {"n", "", "yesterday"}) {
        CHECK_THAT(ended(answer(word), 1).out, mentions("would lose 4.00 MiB") && mentions("go on? [y/N]") &&
                                                   mentions("nothing was changed"));
        CHECK(host.state() == "awake");
    }
    CHECK(answer("y").status == 0);
    CHECK(host.state() == "asleep");
    CHECK(host.command("gpu-wake").status == 0);
    CHECK(host.command("gpu-sleep", {"--level", "2", "--yes"}).err.empty());
    CHECK(host.state() == "asleep");
}

TEST_CASE("Commands: a process is found by its program's name, if it is the only one", "[quick][commands]") {
    const Scratch scratch;
    const auto program = scratch.file("gpu-sleep-test-" + std::to_string(::getpid()));
    const auto name = std::filesystem::path(program).filename().string();
    std::filesystem::create_symlink(command_file("integration_host"), program);
    const Launch launch{{program}};
    LoadedHost one(launch);
    CHECK_THAT(ended(run({{command_file("gpu-sleep"), name}})).out,
               mentions(fmt::format("{} {} is asleep", one.pid(), name)));
    LoadedHost other(launch);
    const auto refused = run({{command_file("gpu-sleep"), name, "--json"}});
    CHECK(refused.json("/error/code") == "ambiguous_name");
    CHECK_THAT(refused.err, mentions("name one by its pid, or all of them by --all") && !mentions("--user"));
    CHECK(run({{command_file("gpu-sleep"), name, "--all"}}).status == 0);
    CHECK(other.state() == "asleep");
    REQUIRE(other.command("gpu-wake").status == 0);
    other.tell("name " + name);
    CHECK(run({{command_file("gpu-sleep"), name}}).status == 0);
    CHECK(other.state() == "asleep"); // and the other, which is asleep already, was not asked
    CHECK(run({{command_file("gpu-wake"), name, "--all"}}).status == 0);
    for (const auto* host : {&one, &other}) CHECK(host->state() == "awake"); // named so, or called so
}

TEST_CASE("Commands: several processes are asked at once, and the status is the worst", "[quick][commands]") {
    LoadedHost one, other;
    const auto first = std::to_string(one.pid());
    const auto second = std::to_string(other.pid());
    const auto ask = [&](const std::string& command, Arguments words) {
        return run({with({command_file(command)}, words)});
    };
    const auto none = ask("gpu-sleep", {first, second, "nobody", "--json"}); // a name may be a slip
    CHECK(none.status == 3);
    CHECK(none.json("/error/code") == "no_process");
    CHECK(one.state() == "awake");
    const auto slept = ended(ask("gpu-sleep", {first, "999999999", second, first, "--json"}), 3);
    CHECK(slept.json("0/state 1/state 2/pid 2/error/code 2/command 3", "/processes/") ==
          "asleep asleep 999999999 no_process none none"); // nothing more is known of it
    const auto woken = ended(ask("gpu-wake", {second, first}));
    REQUIRE(ask("gpu-inhibit", {first, second}).status == 0);
    CHECK(ask("gpu-sleep", {first, second}).status == 1);
    CHECK(ask("gpu-inhibit", {first, second, "--release", "--json"}).json("/processes/1/pid") == second);
}

TEST_CASE("Commands: --all is for all that a user has", "[commands]") {
    if (::geteuid() != 0) return skip_without_right("be another user");
    const Stage stage;
    const Arguments as_another{"setpriv", "--reuid=65533", "--regid=65533", "--clear-groups"};
    LoadedHost host;
    LoadedHost one(stage.launch(as_another));
    LoadedHost other(stage.launch(as_another));
    const auto ask = [&](const std::string& command, const Arguments& options = {}) {
        Arguments words{command_file(command), "--all", "--user", "65533"};
        return run({with(std::move(words), options)});
    };
    const auto slept = ended(ask("gpu-sleep"));
    CHECK(host.state() == "awake");
    for (auto* each : {&one, &other}) CHECK(each->state() == "asleep");
    CHECK(ask("gpu-sleep").out == "nothing to do\n");
    CHECK_THAT(ask("gpu-sleep", {"--dry-run", "--store", "file", "--dir", "/var/tmp"}).out,
               mentions("would move"));
    REQUIRE(ask("gpu-wake").status == 0);
    check_ended(ask("gpu-sleep", {"--tags", "wieghts"}), 2,
                mentions("none of 2 processes") && mentions("there is no tag 'wieghts'"));
    one.tell("alloc own 4194304 0");
    CHECK_THAT(ask("gpu-sleep", {"--tags", "own"}).out, mentions("4.00 MiB")); // the other is passed over
    REQUIRE(ask("gpu-wake").status == 0);
    for (auto* each : {&one, &other}) CHECK(each->state() == "awake");
    CHECK(ask("gpu-inhibit").status == 0);
    CHECK(ask("gpu-sleep").status == 1);
}

TEST_CASE("Commands: a command that lacks descriptors leaves all processes as they are", "[commands]") {
    if (is_sanitized()) return skip("a sanitizer needs descriptors, too");
    const auto name = "gpu-sleep-test-" + std::to_string(::getpid());
    std::vector<std::unique_ptr<Host>> hosts;
    for (int i = 0; i < 4; ++i)
        hosts.push_back(std::make_unique<LoadedHost>(Arguments{"GPU_SLEEP_NAME=" + name}));
    // What is open is known: the three standard ones.
    constexpr const char* k_limited =
        "import os, resource, sys\n"
        "os.closerange(3, 4096)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))\n"
        "os.execv(sys.argv[3], sys.argv[3:])\n";
    const auto sleep_within = [&](const std::string& soft, const std::string& hard) {
        return run({{"python3", "-c", k_limited, soft, hard, command_file("gpu-sleep"), name}});
    };
    for (const auto* few : {"5", "7"}) {
        check_ended(sleep_within(few, few), 1, mentions("ulimit -n"));
        for (const auto& host : hosts) CHECK(host->state() == "awake");
    }
    CHECK(sleep_within("7", "4096").status == 0); // a limit that it may raise
    for (const auto& host : hosts) CHECK(host->state() == "asleep");
}

TEST_CASE("Commands: gpu-ps lists all processes of the user, for people and programs", "[quick][commands]") {
    Host one({"GPU_SLEEP_NAME=the-one"});
    Host other;
    one.tell("alloc weights 4194304 0");
    other.tell("alloc kv_cache 4194304 0");
    REQUIRE(other.command("gpu-sleep").status == 0);
    const auto listed = run({{command_file("gpu-ps")}}); // its status depends on every agent of the machine
    CHECK_THAT(listed.out,
               mentions("the-one") && mentions(std::to_string(other.pid())) && !mentions("offload"));
    std::istringstream lines(run({{command_file("gpu-ps")}, {"COLUMNS=80"}}).out);
    for (std::string line; std::getline(lines, line);) CHECK(width_of(line) <= 80);
    CHECK_THAT(run({{command_file("gpu-ps"), "--long"}}).out, mentions("the-one") && mentions("offload"));
    CHECK_THAT(other.command("gpu-ps").out, mentions("asleep") && mentions("host") && mentions("offload"));
    CHECK(one.command("gpu-ps", {"--json"}).json("/processes/0/state") == "awake");
}

TEST_CASE("Commands: gpu-ps cuts no name for a pipe, unless COLUMNS is set", "[commands]") {
    const std::string name(60, 'x');
    const LoadedHost host({"GPU_SLEEP_NAME=" + name});
    const auto listed = [](Arguments environment) {
        return ended(run({{command_file("gpu-ps")}, std::move(environment)})).out;
    };
    CHECK_THAT(listed({}), mentions(name));
    CHECK_THAT(listed({"COLUMNS=80"}), !mentions(name) && mentions("xxx..."));
}

TEST_CASE("Commands: only the owner and root may", "[commands]") {
    if (::geteuid() != 0) return skip_without_right("be two users");
    const Stage stage;
    const Arguments as_nobody{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
    SECTION("nobody may not touch root's process") {
        LoadedHost host;
        const auto refused =
            ended(run({with(as_nobody, {stage.file("gpu-sleep"), std::to_string(host.pid())})}), 5);
        CHECK(host.state() == "awake");
    }
    SECTION("root may touch anybody's, and so may nobody its own") {
        LoadedHost host(stage.launch(as_nobody));
        REQUIRE(host.command("gpu-sleep").status == 0);
        CHECK(run({with(as_nobody, {stage.file("gpu-wake"), std::to_string(host.pid())})}).status == 0);
        CHECK(host.tell("check_all") == "intact");
    }
}
