// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-doctor on the simulated driver, and where there is none.

#include "support/host.hpp"

#include <nlohmann/json.hpp>

using namespace gpu_sleep::test;

namespace {

Output doctor(Arguments arguments, Arguments environment = {}) {
    return run({with({command_file("gpu-doctor")}, arguments), std::move(environment)});
}

/// The finding of the check `id` of the first process, or else of the machine: "LEVEL FINDING".
std::string finding(const Output& output, const std::string& id) {
    const auto value = nlohmann::json::parse(output.out);
    std::string text;
    const auto look = [&](const nlohmann::json& checks) {
        for (const auto& check : checks)
            if (check.at("id") == id && text.empty())
                text = check.at("level").get<std::string>() + ' ' + check.at("finding").get<std::string>();
    };
    if (!value.at("processes").empty()) look(value.at("processes").at(0).at("checks"));
    look(value.at("machine"));
    return text;
}

} // namespace

TEST_CASE("Doctor: a machine where all works", "[doctor]") {
    const auto plain = ended(doctor({}));
    CHECK_THAT(plain.out, mentions("ok    driver:"));
    CHECK_THAT(plain.out, !mentions("\nbad"));
    const auto output = ended(doctor({"--json"}));
    CHECK(output.json("/exit_status") == "0");
    CHECK_THAT(finding(output, "driver"), mentions("580.0, up to CUDA"));
    CHECK_THAT(finding(output, "link"), mentions("PCIe 4.0 x16"));
    CHECK(doctor({"--quiet"}).out.empty());
}

TEST_CASE("Doctor: the link is measured on request alone", "[doctor]") {
    CHECK_THAT(finding(doctor({"--json"}), "link"), !mentions("measured"));
    // A sanitizer's copies take long.
    const auto measured = ended(doctor({"--json", "--measure", "--timeout", "60s"}));
    CHECK_THAT(finding(measured, "link"), mentions("GB/s from it, measured"));
    const Scratch scratch;
    const auto trace = "GPU_SLEEP_SIM_TRACE=" + scratch.file("trace");
    CHECK(doctor({}, {trace}).status == 0);
    const auto calls = run({{"cat", scratch.file("trace")}}).out;
    CHECK_THAT(calls, mentions("cuInit"));
    CHECK_THAT(calls, !mentions("cuDevicePrimaryCtxRetain"));
}

TEST_CASE("Doctor: a process with an agent, awake and asleep", "[quick][doctor]") {
    LoadedHost host;
    const auto examine = [&](Arguments more = {}) {
        more.emplace_back("--json");
        return host.command("gpu-doctor", std::move(more));
    };
    auto output = ended(examine());
    CHECK(output.json("/processes/0/pid") == std::to_string(host.pid()));
    CHECK_THAT(finding(output, "agent"), mentions("ok answers"));
    CHECK_THAT(finding(output, "sleep"), mentions("would free 4.00 MiB, keep 4.00 MiB"));
    CHECK_THAT(finding(output, "room"), mentions("ok 4.00 MiB needed"));
    CHECK(host.state() == "awake");
    CHECK(host.command("gpu-sleep").status == 0);
    output = examine();
    CHECK(output.status == 0);
    CHECK_THAT(finding(output, "sleep"), mentions("ok it sleeps"));
    CHECK(host.state() == "asleep"); // nobody wakes it
    CHECK(host.command("gpu-wake").status == 0);
    REQUIRE(host.command("gpu-inhibit").status == 0);
    output = examine();
    CHECK(output.status == 1);
    CHECK_THAT(finding(output, "inhibitors"), mentions("bad it refuses sleeps"));
    CHECK(ended(host.command("gpu-doctor", {"--quiet"}), 1).out.starts_with("bad "));
    REQUIRE(host.command("gpu-inhibit", {"--release"}).status == 0);
    host.check_whole();
}

TEST_CASE("Steps: both sides say each with its time, if they are asked to", "[quick][doctor]") {
    LoadedHost host({"GPU_SLEEP_LOG=debug"});
    const auto by_command = [&](const std::string& name) {
        return run({{command_file(name), std::to_string(host.pid())}, {"GPU_SLEEP_LOG=debug"}}).err;
    };
    CHECK(succeeded(host.command("gpu-sleep", {"--dry-run"})));
    const auto sleeping = by_command("gpu-sleep");
    CHECK(succeeded(host.command("gpu-wake", {"--dry-run"})));
    const auto waking = by_command("gpu-wake");
    const auto is_in_order = [](const std::string& text, const Arguments& parts) {
        std::size_t at = 0;
        for (const auto& part : parts) {
            INFO(part << " in " << text);
            at = text.find(part, at);
            REQUIRE(at != std::string::npos);
        }
    };
    const auto process = "process " + std::to_string(host.pid());
    is_in_order(sleeping, {process + " is asked, after", process + " is in phase callbacks, after",
                           process + " is in phase release, in a call of the system or the driver",
                           process + " has answered, after"});
    is_in_order(waking, {process + " is asked", process + " has answered"});
    const auto agent = host.process().errors();
    is_in_order(agent, {" sleep begins\n", " drain GPU work begins\n",
                        " drain GPU work: ", " copy contents begins\n",
                        " copy contents: ", " release GPU memory: ", " sleep: ", " wake begins\n",
                        " take GPU memory and copy contents back: ", " wake: "});
    is_in_order(agent, {" rehearse a sleep begins\n", " rehearse a sleep: ", " drain GPU work",
                        " sleep: ", " rehearse a wake begins\n", " wake begins\n"});
    CHECK(waking.starts_with("gpu-wake["));
    // "gpu-sleep[PID]: HH:MM:SS.mmm "
    const auto begin = agent.find("]: ") + 3;
    CHECK((agent.at(begin + 2) == ':' && agent.at(begin + 5) == ':' && agent.at(begin + 8) == '.'));
    CHECK(host.command("gpu-sleep").err.empty()); // nobody asked
}

TEST_CASE("Steps: a level that is none is refused by commands, and said once by the agent", "[doctor]") {
    check_ended(doctor({}, {"GPU_SLEEP_LOG=verbose"}), 2,
                mentions("GPU_SLEEP_LOG: 'verbose' is not error, warning, info or debug"));
    CHECK(doctor({"--help"}, {"GPU_SLEEP_LOG=verbose"}).status == 0);
    CHECK(doctor({"--quiet"}, {"GPU_SLEEP_LOG="}).status == 0);
    LoadedHost host({"GPU_SLEEP_LOG=verbose"});
    host.cycle();
    const auto said = host.process().errors();
    const auto at = said.find("GPU_SLEEP_LOG is ignored: 'verbose' is not error, warning, info or debug");
    REQUIRE(at != std::string::npos);
    CHECK(said.find("GPU_SLEEP_LOG", at + 1) == std::string::npos);
}

TEST_CASE("Doctor: a report for others says how a process stands, but names nothing", "[quick][doctor]") {
    const Scratch scratch;
    LoadedHost host({"GPU_SLEEP_NAME=secret-name", "GPU_SLEEP_GROUP=31415", "GPU_SLEEP_GATE=checked",
                     "GPU_SLEEP_TAG=31415", "GPU_SLEEP_HTTP_TOKEN=3141592653589793", "GPU_SLEEP_MIN_SIZE=1"});
    host.tell("alloc secret-tag 1048576 0");
    const auto files = scratch.file("secret-files");
    host.sleep({"--dir", files});
    host.wake();
    host.sleep({"--dir", files});
    const auto path = scratch.file("report");
    const auto asked = ended(host.command("gpu-doctor", {"--report", path, "--dir", files}));
    const auto text = run({{"cat", path}}).out;
    for (const auto* const part :
         {"gpu-sleep 0.", "Linux", "driver: ok 580.0", "asleep for", "GPU_SLEEP_GATE=checked",
          "GPU_SLEEP_NAME=set", "GPU_SLEEP_TAG=set", "GPU_SLEEP_HTTP_TOKEN=set", "GPU_SLEEP_MIN_SIZE=1",
          "tag number 2 on GPU 0: asleep", "sleep: 2 done in", "wake: 1 done in",
          "drain GPU work: ", "agent: ok, exit status 0"})
        CHECK_THAT(text, mentions(part));
    for (const auto* const part : {"secret", "weights", "31415", "integration_host", "/tmp"}) {
        INFO(part << " in " << text);
        CHECK(text.find(part) == std::string::npos);
    }
    CHECK_THAT(run({{"stat", "--format=%a", path}}).out, mentions("600"));
    check_ended(host.command("gpu-doctor", {"--report", path}), 2,
                mentions("--report: there is a file " + path + " already; name a new one"));
    host.wake_whole();
    // While a step hangs, the report says which.
    LoadedHost slow({"GPU_SLEEP_SIM_DELAY=cuMemUnmap:3s"});
    auto sleeping = slow.start("gpu-sleep");
    const auto hanging = scratch.file("hanging");
    std::string said;
    for (int tries = 0; tries < 100 && said.find("release GPU memory: under way for") == std::string::npos;
         ++tries) {
        REQUIRE(run({{"rm", "-f", hanging}}).status == 0);
        static_cast<void>(slow.command("gpu-doctor", {"--report", hanging, "--timeout", "500ms"}));
        said = run({{"cat", hanging}}).out;
    }
    CHECK_THAT(said, mentions("release GPU memory: under way for"));
    CHECK(sleeping.wait() == 0);
    slow.wake();
}
