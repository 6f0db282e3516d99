// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A wake that waits for GPU memory: others go past it, it is seen, and it ends with what is true.

#include "support/shared_devices.hpp"

#include <fmt/ranges.h>

using namespace gpu_sleep::test;

namespace {

constexpr const char* k_first = "/processes/0/report/wakes_waiting/0";

/// A process that sleeps, and whose weights somebody else's memory keeps from waking; its other tags fit.
struct Short {
    const SharedDevices devices{64 * k_mib};
    Host host{devices.environment()};
    Host rival{devices.environment()};

    Short() {
        host.tell("alloc weights 33554432 0");
        host.tell("alloc small 4194304 0");
        host.tell("alloc awake 2097152 0");
        REQUIRE(host.command("gpu-sleep", {"--tags", "weights,small"}).status == 0);
        rival.tell("alloc weights 41943040 0");
    }

    /// Whether it comes to have a wake that waits, or none.
    [[nodiscard]] bool shows(bool waits = true) const {
        return becomes_true([&] { return (host.report("wakes_waiting/0") != "none") == waits; });
    }
    [[nodiscard]] Process wait_for_weights(const std::string& limit = "60s", bool is_json = false) const {
        Arguments arguments{"--tags", "weights", "--wait", limit};
        if (is_json) arguments.emplace_back("--json");
        return host.start("gpu-wake", arguments);
    }
    void make_room() { rival.tell("free 0"); }
};

/// A request that comes while a wake of `weights` waits, and what it leads to.
struct Row {
    const char* command;
    Arguments arguments;
    int status;
    const char* small;   ///< the state of the other tag afterwards
    const char* weights; ///< what they hold when the wake has ended: "intact" or "zero"
};

const std::vector<Row>& table() {
    static const std::vector<Row> rows = {
        {"gpu-wake", {"--tags", "small"}, 0, "awake", "intact"},
        {"gpu-wake", {"--tags", "weights"}, 7, "asleep", "intact"},
        {"gpu-sleep", {"--tags", "weights", "--level", "2"}, 0, "asleep", "zero"},
    };
    return rows;
}

} // namespace

TEST_CASE("Waiting: every request goes past a wake that waits for GPU memory", "[waiting]") {
    const auto& row = table()[GENERATE(range(std::size_t{0}, std::size_t{3}))];
    INFO(row.command << " " << fmt::format("{}", fmt::join(row.arguments, " ")));
    REQUIRE(table().size() == 3);
    Short process;
    auto waiting = process.wait_for_weights();
    REQUIRE(process.shows());
    const auto output =
        ended(process.host.command(row.command, with(row.arguments, {"--timeout", "5s"})), row.status);
    const auto listed = process.host.command("gpu-ps", {"--json"});
    CHECK(listed.tag("small", "state") == row.small);
    CHECK(listed.json(k_first) != "none"); // it waits still
    process.make_room();
    CHECK(waiting.finish().status == 0);
    CHECK(process.shows(false));
    CHECK(process.host.tell("check 0") == row.weights);
    REQUIRE(process.host.command("gpu-wake").status == 0);
    CHECK(process.host.tell("check 1") == "intact");
    CHECK(process.host.tell("check 2") == "intact");
}

TEST_CASE("Waiting: gpu-ps tells what waits, for how long and why, until its command is gone", "[waiting]") {
    Short process;
    {
        const auto killed = process.wait_for_weights();
        REQUIRE(process.shows());
        const auto json = process.host.command("gpu-ps", {"--json"});
        CHECK(json.json(std::string(k_first) + "/tags/0") == "weights");
        CHECK(json.json(std::string(k_first) + "/by_touch") == "false");
        CHECK_THAT(json.json(std::string(k_first) + "/reason"), mentions("32.0 MiB on GPU 0"));
        CHECK(std::stod(json.json(std::string(k_first) + "/seconds")) < 60);
    }
    CHECK(process.shows(false));
    process.make_room();
    pause_for(Milliseconds(200));
    CHECK(process.host.state() == "partial");
    REQUIRE(process.host.command("gpu-wake").status == 0);
    CHECK(process.host.tell("check_all") == "intact");
}

TEST_CASE("Waiting: gpu-wake says once who has the memory, and until when it waits", "[waiting]") {
    const bool is_quiet = GENERATE(false, true);
    Short process;
    Arguments arguments{"--tags", "weights", "--wait", is_quiet ? "5s" : "60s"};
    if (is_quiet) arguments.emplace_back("--quiet");
    auto waiting = process.host.start("gpu-wake", arguments);
    if (!is_quiet) {
        REQUIRE(becomes_true([&] { return waiting.errors().find('\n') != std::string::npos; }));
        pause_for(Milliseconds(1'000));
        process.make_room();
    }
    const auto output = ended(waiting.finish(), (is_quiet ? 7 : 0));
    const std::string words = " waits at most 5";
    const auto at = output.err.find(words);
    CHECK((at == std::string::npos) == is_quiet);
    CHECK(at == output.err.rfind(words));
    if (is_quiet) return;
    CHECK_THAT(output.err,
               mentions(" s for GPU memory: waking needs 32.0 MiB on GPU 0") &&
                   mentions(fmt::format("{} (integration_host) has 40.0 MiB", process.rival.pid())));
}

TEST_CASE("Waiting: the program's own wake waits in the same way", "[waiting]") {
    Short process;
    process.host.tell("callback note");
    process.host.process().send("wake weights 60000");
    REQUIRE(process.shows());
    REQUIRE(process.host.command("gpu-wake", {"--tags", "small", "--timeout", "5s"}).status == 0);
    CHECK(process.host.report("wakes_waiting/0") != "none");
    process.make_room();
    CHECK(process.host.process().read_line() == "ok ");
    CHECK(process.host.tell("check_all") == "intact");
    CHECK_THAT(process.host.tell("calls"), mentions("0 2 ")); // before and after
}

TEST_CASE("Waiting: gpu-doctor's report tells the sleep's steps while a wake is tried again", "[waiting]") {
    const bool makes_room = GENERATE(false, true);
    Short process;
    REQUIRE(process.rival.command("gpu-inhibit").status == 0);
    Arguments arguments{"--wait", "60s"};
    if (makes_room) arguments.emplace_back("--make-room");
    const auto waiting = process.host.start("gpu-wake", arguments);
    REQUIRE(process.shows());
    pause_for(Milliseconds(2'000)); // forty tries
    const Scratch scratch;
    const auto path = scratch.file("report");
    REQUIRE(process.host.command("gpu-doctor", {"--report", path}).status == 0);
    const auto text = run({{"cat", path}}).out;
    CHECK_THAT(text, mentions("copy contents: ") && mentions("wait for other operations: "));
}
