// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How the commands read what was typed, and how they answer.

#include "support/host.hpp"

using namespace gpu_sleep::test;

namespace {

/// Runs `command` with a standard output that takes nothing.
Output run_with_full_output(const std::string& command, const Arguments& arguments) {
    Launch launch{{"sh", "-c", "exec \"$@\" >/dev/full", "sh", command_file(command)}};
    launch.command.insert(launch.command.end(), arguments.begin(), arguments.end());
    return run(launch);
}

} // namespace

TEST_CASE("Command line: a result that cannot be written is said to be lost", "[command_line]") {
    LoadedHost host;
    const auto pid = std::to_string(host.pid());
    const auto is_lost = [](const Output& output) {
        return output.err.find("cannot write the result: No space left on device") != std::string::npos;
    };
    for (const Arguments& arguments :
         {Arguments{pid}, Arguments{pid, "--json"}, Arguments{pid, "--watch=1s"}, Arguments{"--help"}}) {
        CHECK(is_lost(ended(run_with_full_output("gpu-ps", arguments), 1)));
    }
    const auto slept = run_with_full_output("gpu-sleep", {pid, "--json"});
    CHECK(slept.status == 0); // 1 would say that it is awake
    CHECK(is_lost(slept));
    CHECK(host.state() == "asleep");
    CHECK(is_lost(ended(run_with_full_output("gpu-wake", {pid}))));
    CHECK(is_lost(ended(run_with_full_output("gpu-wake", {pid, "--tags", "wieghts", "--json"}), 2)));
    CHECK(run_with_full_output("gpu-wake", {pid, "--quiet"}).err.empty());
    CHECK(host.state() == "awake");
}

TEST_CASE("Command line: where standard output is closed, the result goes nowhere else", "[command_line]") {
    LoadedHost host;
    const auto pid = std::to_string(host.pid());
    const Scratch scratch;
    const auto run_closed = [&](const std::string& command, const std::string& argument) {
        // The driver opens the file of its devices, which must not get the number.
        return run(Launch{{"sh", "-c", "exec \"$@\" >&-", "sh", command_file(command), argument},
                          {"GPU_SLEEP_SIM_STATE=" + scratch.file("devices")}});
    };
    for (const std::string argument : {pid.c_str(), "--json", "--help"}) {
        check_ended(run_closed("gpu-ps", argument), 1,
                    mentions("cannot write the result: Bad file descriptor"));
    }
    CHECK(run_closed("gpu-sleep", pid).status == 0); // 1 would say that it is awake
    CHECK(host.state() == "asleep");
    // A program that gpu-run starts finds it closed.
    CHECK(run(Launch{{"sh", "-c", "exec \"$@\" >&-", "sh", command_file("gpu-run"), "--", "sh", "-c",
                      "test ! -e /proc/self/fd/1"}})
              .status == 0);
}

TEST_CASE("Command line: a reader that has gone changes no status", "[command_line]") {
    constexpr auto k_no_reader = "{ sleep 0.2; \"$@\"; echo \"status $?\" >&2; } | true";
    const auto output =
        run(Launch{{"sh", "-c", k_no_reader, "sh", command_file("gpu-sleep"), "999999999", "--json"}});
    CHECK_THAT(output.err, mentions("cannot write the result: Broken pipe"));
    CHECK_THAT(output.err, mentions("status 3"));
    const auto helped = run(Launch{{"sh", "-c", k_no_reader, "sh", command_file("gpu-sleep"), "--help"}});
    CHECK(helped.err == "status 0\n"); // it was read as far as it was wanted
    const auto listed = run(Launch{{"sh", "-c", k_no_reader, "sh", command_file("gpu-ps"), "--watch=50ms"}});
    CHECK(listed.err == "status 0\n");
    constexpr auto k_no_reader_of_errors = "{ sleep 0.2; \"$@\" 2>&1; echo \"status $?\" >&2; } | true";
    const auto refused =
        run(Launch{{"sh", "-c", k_no_reader_of_errors, "sh", command_file("gpu-sleep"), "999999999"}});
    CHECK(refused.err == "status 3\n");
}

TEST_CASE("Command line: a directory cannot be named from one that is gone", "[command_line]") {
    constexpr auto k_lost = "cd \"$(mktemp -d)\" && rmdir \"$PWD\" && exec \"$@\"";
    check_ended(run(Launch{{"sh", "-c", k_lost, "sh", command_file("gpu-sleep"), std::to_string(::getpid()),
                            "--store", "file", "--dir", "here"}}),
                2, mentions("'here' is relative to a working directory that is gone"));
}

TEST_CASE("Command line: wrong usage is said in JSON where that was asked for", "[command_line]") {
    Host host;
    const auto check = [](const Output& output, const std::string& program, const std::string& reason) {
        CHECK(output.status == 2);
        CHECK(output.json("/schema") == "1");
        CHECK(output.json("/program") == program);
        CHECK(output.json("/exit_status /error/code") == "2 invalid_argument");
        CHECK(output.json("/error/advice").empty());
        CHECK(output.json("/error/message").find(reason) != std::string::npos);
        CHECK_THAT(output.err, mentions(reason));
    };
    check(host.command("gpu-sleep", {"--tags", "a b", "--json"}), "gpu-sleep", "'a b' is not a tag");
    check(host.command("gpu-sleep", {"--store", "file", "--json"}), "gpu-sleep", "needs --dir");
    check(run({{command_file("gpu-sleep"), "--json"}}), "gpu-sleep", "PID");
    check(host.command("gpu-wake", {"--wait", "x", "--json"}), "gpu-wake", "x");
    check(host.command("gpu-ps", {"--watch=x", "--json"}), "gpu-ps", "x");
    CHECK(host.command("gpu-sleep", {"--tags", "a b"}).out.empty());
    CHECK(host.command("gpu-sleep", {"--tags", "a b", "--", "--json"}).out.empty());
}

TEST_CASE("Command line: what is wrong is said in words that fit", "[command_line]") {
    LoadedHost host;
    const auto pid = std::to_string(host.pid());
    CHECK_THAT(run({{command_file("gpu-sleep"), "-1"}}).err, mentions(": -1 is no pid\n"));
    check_ended(run({{command_file("gpu-sleep"), pid, "no-such-model"}}), 3,
                mentions("there is no process named 'no-such-model'; nothing was changed"));
    CHECK(host.state() == "awake");
    const Process idle(Launch{{"sleep", "60"}});
    check_ended(run({{command_file("gpu-sleep"), std::to_string(idle.pid())}}), 3,
                mentions("does not use the GPU: nothing to free") && !mentions("--engine driver"));
    CHECK(host.command("gpu-ps", {"--pids"}).out == pid + "\n");
}

TEST_CASE("Command line: a listing that is repeated ends when what it is of is not there", "[command_line]") {
    CHECK(run({{command_file("gpu-ps"), "999999999", "--watch", "1"}}).status == 3); // an interval
    CHECK(run({{command_file("gpu-ps"), "999999999", "--watch", "50ms"}}).status == 3);
    CHECK(run({{command_file("gpu-ps"), "--watch", "999999999"}}).status == 3); // a pid
    CHECK(run({{command_file("gpu-ps"), "--watch=50ms", "999999999"}}).status == 3);
    CHECK(run({{command_file("gpu-ps"), "--watch=50ms", "999999999", "--json"}}).json("/error/code") ==
          "no_process");
    LoadedHost host;
    auto watched = host.start("gpu-ps", {"--watch=50ms", "--json"});
    for (int i = 0; i < 3; ++i) CHECK_THAT(watched.read_line(), mentions("\"awake\""));
    host.kill();
    CHECK(watched.finish().status == 3);
}

TEST_CASE("Command line: a listing waits for what is not there yet if it is told to", "[command_line]") {
    Process waiting(Launch{{command_file("gpu-ps"), "--watch=50ms", "--json", "--await", "awaited"}});
    CHECK_THAT(waiting.read_line(), mentions("no_process"));
    {
        LoadedHost host({"GPU_SLEEP_NAME=awaited"});
        CHECK(becomes_true([&] { return waiting.read_line().find("\"awake\"") != std::string::npos; }));
    }
    CHECK(becomes_true([&] { return waiting.read_line().find("no_process") != std::string::npos; }));
}
