// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Room on demand: processes that do not fit together take turns, by touches and by commands.

#include "client/gpu_queue.hpp"
#include "support/configuration.hpp"
#include "support/shared_devices.hpp"

#include <fmt/format.h>

using namespace gpu_sleep::test;

namespace {

/// Of what is looked at before a time is over: a sanitizer's commands take longer to look.
const int k_slowness = is_sanitized() ? 4 : 1;

constexpr const char* k_waiting = "wakes_waiting/0";
constexpr const char* k_place = "wakes_waiting/0/place";
constexpr const char* k_uuid = "devices/0/uuid";

/// A GPU with room for one of the models that use it.
struct Machine {
    SharedDevices devices;
    Scratch without_nvml; ///< a directory whose NVML is none, so that nobody finds this machine's own

    Machine() : devices(64 * k_mib) { std::ofstream(without_nvml.file("libnvidia-ml.so.1")); }
    /// The environment of a program that makes room when it is touched.
    [[nodiscard]] Arguments model(const std::string& name, int min_awake_ms = 0) const {
        return with(devices.environment(),
                    {"GPU_SLEEP_CAPTURE=1", "GPU_SLEEP_NAME=" + name, "GPU_SLEEP_ON_TOUCH=wake",
                     "GPU_SLEEP_MAKE_ROOM=1", fmt::format("GPU_SLEEP_MIN_AWAKE={}", min_awake_ms)});
    }
    /// gpu-reclaim for 40 MiB of a GPU.
    [[nodiscard]] Launch need(const std::string& gpu, const Configuration& config,
                              const Arguments& more = {}) const {
        return {
            with({command_file("gpu-reclaim"), "--need", "40MiB", "--gpu", gpu, "--config", config.file()},
                 more),
            devices.environment()};
    }
    /// A command that sees this machine's GPUs by NVML, or has to ask agents.
    [[nodiscard]] Output run(const std::string& command, Arguments arguments, bool has_nvml) const {
        arguments.insert(arguments.begin(), command_file(command));
        auto variables = devices.environment();
        if (!has_nvml) variables.push_back("LD_LIBRARY_PATH=" + without_nvml.path().string());
        return test::run(Launch{std::move(arguments), std::move(variables)});
    }
};

/// A program whose weights take more than half of the GPU, asleep.
struct Model {
    Host host;
    explicit Model(const Arguments& environment) : host(environment) {
        host.tell("alloc weights 33554432 0");
        REQUIRE(host.command("gpu-sleep").status == 0);
    }
    /// A request: work on the GPU that shows whether all bytes are there.
    void request() { CHECK(host.tell("check 0") == "intact"); }
    /// The same in two parts.
    void begin_request() { host.process().send("check 0"); }
    void end_request() { CHECK(host.process().read_line() == "ok intact"); }
    [[nodiscard]] bool shows(const std::string& name, const std::string& value) const {
        return becomes_true([&] { return host.report(name) == value; });
    }
    [[nodiscard]] bool says(const std::string& words) {
        return becomes_true([&] { return mentions(words).match(host.process().errors()); });
    }
};

/// The line of those who wait for room on the GPU of `host`.
client::GpuQueue line_for(const Host& host) {
    const auto path = std::filesystem::path(socket_file(host.pid())).parent_path();
    const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return need(client::GpuQueue::open(directory.get(), host.report(k_uuid)));
}

} // namespace

TEST_CASE("Room: two models that do not fit take turns on requests alone", "[quick][room]") {
    const Machine machine;
    Model first(machine.model("first"));
    Model second(machine.model("second"));
    for (int i = 0; i < 3; ++i) {
        first.request();
        CHECK(second.host.state() == "asleep");
        second.request();
        CHECK(first.host.state() == "asleep");
    }
    CHECK(second.host.report(k_waiting) == "none");
    const auto history = first.host.command("gpu-ps", {"--history", "--json"});
    CHECK(history.json("/history/1/asked_by /history/2/asked_by") == "touch room for second");
}

TEST_CASE("Room: who waits for another's time hears whose, and how to go before it", "[room]") {
    constexpr int k_min_awake = 600'000;
    const Machine machine;
    Model first(machine.model("first", k_min_awake));
    Model second(machine.model("second", k_min_awake));
    Model third(machine.model("third", k_min_awake));
    first.request();
    second.begin_request();
    REQUIRE(second.says(fmt::format("to go first: gpu-switch {}", second.host.pid())));
    const auto said = second.host.process().errors();
    CHECK_THAT(said, mentions(fmt::format("{} (first) has 32.0 MiB: it was woken", first.host.pid())) &&
                         mentions("ago, and may sleep in 9 min") && !mentions("wake it with"));
    CHECK(ended(second.host.command("gpu-wake",
                                    {"--make-room", "--min-awake", "600s", "--wait", "0s", "--json"}),
                7)
              .json("/processes/0/error/retry_seconds") != "null");
    CHECK_THAT(ended(second.host.command("gpu-wake", {"--make-room", "--min-awake", "0s"})).out,
               mentions("(first) was put to sleep for it"));
    second.end_request();
    CHECK(first.host.state() == "asleep");
    first.begin_request();
    REQUIRE(first.shows(k_place, "1"));
    third.begin_request();
    CHECK(third.says("number 2 in the queue, and has its turn in about 20 min 0 s at most"));
    REQUIRE(second.host.command("gpu-inhibit").status == 0);
    const auto refusal = fmt::format("{} (second) has 32.0 MiB: sleeps are inhibited", second.host.pid());
    CHECK(third.says(refusal)); // though it has said its place
    CHECK(first.says(refusal));
    REQUIRE(second.host.command("gpu-inhibit", {"--release"}).status == 0);
    REQUIRE(second.host.command("gpu-sleep").status == 0);
    REQUIRE(becomes_true([&] { return first.host.state() == "awake" || third.host.state() == "awake"; }));
    auto& ahead = first.host.state() == "awake" ? first : third;
    auto& behind = &ahead == &first ? third : first;
    ahead.end_request();
    CHECK(behind.host.command("gpu-wake", {"--make-room", "--min-awake", "0s"}).status == 0);
    behind.end_request();
    second.begin_request();
    pause_for(Milliseconds(4'000)); // longer than it waits without a word
    CHECK(second.host.command("gpu-wake", {"--make-room", "--min-awake", "0s"}).status == 0);
    second.end_request();
    const auto all = second.host.process().errors();
    CHECK(all.find("to go first") == all.rfind("to go first")); // not in each turn
}

TEST_CASE("Room: those who wait have their turns in the order in which they came", "[room]") {
    const Machine machine;
    std::deque<Model> models;
    for (const auto* const name : {"first", "second", "third"})
        models.emplace_back(machine.model(name, 3'000 * k_slowness)); // time to be seen in line
    models[0].request();
    models[1].begin_request();
    REQUIRE(models[1].shows(k_place, "1"));
    models[2].begin_request();
    REQUIRE(models[2].shows(k_place, "2"));
    CHECK_THAT(models[2].host.command("gpu-ps").out, mentions("for room, 2nd in the queue"));
    models[1].end_request();
    CHECK(models[0].host.state() == "asleep");
    CHECK(models[2].host.state() == "asleep");
    REQUIRE(models[2].shows(k_place, "1"));
    models[2].end_request();
    CHECK(models[1].host.state() == "asleep");
    CHECK(models[2].host.report(k_waiting) == "none");
}

TEST_CASE("Room: gpu-switch wakes before all who wait, whoever has just woken, and holds", "[room]") {
    const Machine machine;
    std::deque<Model> models;
    for (const auto* const name : {"first", "second", "third"})
        models.emplace_back(machine.model(name, 600'000));
    auto& first = models[0];
    auto& second = models[1];
    auto& third = models[2];
    first.request();
    second.begin_request();
    REQUIRE(second.shows(k_place, "1"));
    const auto would = ended(third.host.command("gpu-switch", {"--dry-run"}));
    CHECK_THAT(would.out, mentions("(first) would be put to sleep for it"));
    REQUIRE(first.host.command("gpu-inhibit").status == 0);
    CHECK(third.host.command("gpu-switch", {"--dry-run", "--wait", "9s"}).status == 0); // it would wait
    CHECK(third.host.command("gpu-switch", {"--dry-run", "--wait", "0s"}).status == 7);
    CHECK_THAT(ended(third.host.command("gpu-switch", {"--dry-run"}), 7).out,
               mentions("(first) has 32.0 MiB: sleeps are inhibited"));
    check_ended(third.host.command("gpu-switch"), 7,
                !mentions("waits at most") && mentions("gpu-inhibit --release") &&
                    mentions("(first) has 32.0 MiB: sleeps are inhibited"));
    REQUIRE(first.host.command("gpu-inhibit", {"--release"}).status == 0);
    CHECK(first.host.state() == "awake");
    CHECK_FALSE(third.host.report(k_place) == "1"); // it does not stand in line
    const auto start = Clock::now();
    const auto done = third.host.command("gpu-switch");
    CHECK(Clock::now() - start < Milliseconds(8'000) * k_slowness); // or the line would count as stuck
    REQUIRE(done.status == 0);
    CHECK_THAT(done.out, mentions("(first) was put to sleep for it"));
    CHECK(third.host.report("seconds_since_wake") != "none");
    pause_for(Milliseconds(1'000));
    CHECK(third.host.state() == "awake"); // though another still waits for it
    CHECK_THAT(third.host.command("gpu-switch").out, mentions("already awake"));
    CHECK(std::stod(third.host.report("seconds_since_wake")) < 0.9); // it is left alone for as long again
    CHECK(second.host.command("gpu-switch", {"--wait", "10s"}).status == 0);
    second.end_request();
    CHECK(third.host.state() == "asleep");
}

TEST_CASE("Room: a waiting wake that is given up leaves the line", "[room]") {
    const Machine machine;
    Model first(machine.model("first", 60'000));
    Model second(machine.model("second", 60'000));
    Model third(machine.model("third", 0));
    first.request();
    auto given_up = second.host.start("gpu-wake", {"--make-room", "--wait", "1s", "--min-awake", "60s"});
    REQUIRE(second.shows(k_place, "1"));
    const auto output = ended(given_up.finish(), 7);
    third.request();
    CHECK(first.host.state() == "asleep");
}

TEST_CASE("Room: gpu-reclaim --need puts no more to sleep than it has to, or says why it cannot", "[room]") {
    if (!reads_configurations()) return;
    const Machine machine;
    Model only(machine.model("only"));
    const auto need = [&](Arguments arguments, const char* min_awake = "0s", bool has_nvml = true) {
        const Configuration of(fmt::format("[reclaim]\nmin-awake = \"{}\"\n", min_awake));
        return machine.run(
            "gpu-reclaim",
            with(std::move(arguments), {"--gpu", only.host.report(k_uuid), "--config", of.file()}), has_nvml);
    };
    {
        Host busy(machine.model("busy")); // it never slept, so that nothing but its work protects it
        busy.tell("alloc weights 33554432 0");
        check_ended(machine.run("gpu-reclaim",
                                {"--need", "40MiB", "--gpu", busy.report(k_uuid), "--idle", "1h"}, true),
                    1, mentions("idle"));
    }
    only.request();
    CHECK(need({"--need", "1MiB"}).status == 0);
    CHECK(only.host.state() == "awake");
    const auto would = ended(need({"--need", "40MiB", "--dry-run"}));
    only.host.tell("hold");
    CHECK(need({"--need", "40MiB", "--dry-run"}).status == 1);
    only.host.tell("resume");
    CHECK(only.host.state() == "awake");
    const auto too_much = ended(need({"--need", "60MiB", "--json"}), 1);
    CHECK_THAT(too_much.json("/gpu/against/0"), mentions("could sleep"));
    CHECK(too_much.json("/error/code") == "out_of_device_memory");
    CHECK(only.host.state() == "awake");
    for (const bool has_nvml : {true, false}) {
        CHECK(succeeded(need({"--need", "40MiB"}, "0s", has_nvml)));
        CHECK(only.host.state() == "asleep");
        only.request();
    }
    CHECK(need({"--need", "40MiB", "no-such-model"}).status == 3);
    CHECK(only.host.state() == "awake");
    check_ended(need({"--need", "40MiB"}, "60s"), 1,
                mentions("it was woken") && mentions("; wait with --wait ") && !mentions("--min-awake"));
}

TEST_CASE("Room: gpu-reclaim --need asks whoever has the memory once nobody else makes room", "[room]") {
    if (!reads_configurations()) return;
    const Machine machine;
    Model first(machine.model("first"));
    Model second(machine.model("second"));
    const auto gpu = second.host.report(k_uuid);
    auto other = line_for(second.host);
    REQUIRE(other.lock());
    const Configuration always("[reclaim]\nmin-awake = \"0s\"\n");
    Process need(machine.need(gpu, always));
    await_open(need, "room-" + gpu); // it knows how all stand, and waits for its turn
    second.host.wake();
    other.unlock();
    CHECK(succeeded(need.finish()));
    CHECK(second.host.state() == "asleep");
}

TEST_CASE("Room: gpu-reclaim --need --wait keeps its place before those who come while it waits", "[room]") {
    if (!reads_configurations()) return;
    const Machine machine;
    const int min_awake = 7'000 * k_slowness;
    Model first(machine.model("first", min_awake));
    Model second(machine.model("second", min_awake));
    const auto gpu = second.host.report(k_uuid);
    const auto line = line_for(second.host);
    first.request();
    const Configuration later(fmt::format("[reclaim]\nmin-awake = \"{}ms\"\n", min_awake));
    Process need(machine.need(gpu, later, {"--wait", "60s"}));
    REQUIRE(becomes_true([&] { return line.before() == 1; }));
    second.begin_request();
    REQUIRE(second.shows(k_place, "2"));
    CHECK_THAT(ended(need.finish()).out,
               mentions(fmt::format("{} first", first.host.pid())) && !mentions("second"));
    second.end_request();
}

TEST_CASE("Room: gpu-reclaim --need --wait lets wakes with room go first while its time is far", "[room]") {
    if (!reads_configurations()) return;
    const Machine machine;
    Host small(machine.model("small", 600'000)); // which goes before others only after such a time
    small.tell("alloc weights 4194304 0");
    REQUIRE(small.command("gpu-sleep").status == 0);
    Model first(machine.model("first"));
    first.request();
    const Configuration later("[reclaim]\nmin-awake = \"1h\"\n");
    Process need(machine.need(first.host.report(k_uuid), later, {"--wait", "30s"}));
    REQUIRE(becomes_true([&] { return mentions("waits at most").match(need.errors()); }));
    CHECK(small.tell("check 0") == "intact");
    CHECK_FALSE(need.wait_for(Milliseconds(0)));
}

TEST_CASE("Room: gpu-reclaim --need --wait tells also of whom it put to sleep before it waited", "[room]") {
    if (!reads_configurations()) return;
    const Machine machine;
    Host first(machine.model("first"));
    Host second(machine.model("second"));
    for (auto* const host : {&first, &second}) host->tell("alloc weights 16777216 0");
    second.tell("callback linger 100");
    const Configuration always("[reclaim]\nmin-awake = \"0s\"\n");
    Process need(machine.need(first.report(k_uuid), always, {"--wait", "60s", "--json"}));
    REQUIRE(becomes_true([&] { return first.state() == "asleep"; }));
    pause_for(Milliseconds(500)); // longer than the callback may take
    second.tell("let_go");
    second.tell("callback none");
    const auto done = ended(need.finish());
    CHECK(done.json("/processes/0/pid") == std::to_string(first.pid()));
    CHECK(done.json("/processes/1/pid") == std::to_string(second.pid()));
}

TEST_CASE("Room: gpu-run --need makes room before its command starts, or does not start it", "[room]") {
    const Machine machine;
    Model only(machine.model("only"));
    const auto woken = Clock::now();
    only.request();
    const auto start = [&](const char* need, const std::string& visible, const std::string& min_awake = "0s",
                           const Arguments& more = {}) {
        const Arguments run{command_file("gpu-run"), "--need", need, "--min-awake", min_awake};
        return test::run(
            Launch{with(with(run, more), {"--", "echo", "started"}),
                   with(machine.devices.environment(),
                        {"CUDA_VISIBLE_DEVICES=" + visible, "GPU_SLEEP_NAME=", "GPU_SLEEP_CAPTURE="})});
    };
    const auto gpu = only.host.report(k_uuid);
    CHECK(start("1MiB", gpu).out == "started\n");
    const auto limited = test::run(Launch{
        {"sh", "-c", "ulimit -Sn 200; " + command_file("gpu-run") + " --need 1MiB -- sh -c 'ulimit -Sn'"},
        with(machine.devices.environment(), {"CUDA_VISIBLE_DEVICES=" + gpu})});
    CHECK(limited.out == "200\n"); // as many descriptors as before
    const auto too_much = ended(start("63MB", gpu), 1);
    CHECK(too_much.out.empty());
    CHECK_THAT(too_much.err, mentions("gpu-run: cannot free 60.1 MiB on GPU"));
    CHECK_THAT(start("1.5GB", gpu).err, mentions("cannot free 1.40 GiB on GPU"));
    CHECK_THAT(start("1GiB", gpu).err, mentions(": it has only 64.0 MiB in all; ask for less\n"));
    const auto early = start("40MiB", gpu, "600s");
    CHECK(early.out.empty());
    CHECK_THAT(early.err, mentions("s, or give --min-awake 0s"));
    const std::string advice = "; wait with --wait ";
    REQUIRE_THAT(early.err, mentions(advice));
    const auto advised = std::stod(early.err.substr(early.err.find(advice) + advice.size()));
    CHECK(advised >= 605 - std::chrono::duration<double>(Clock::now() - woken).count()); // with a margin
    CHECK(start("40MiB", "GPU-0000").status == 2);
    CHECK(only.host.state() == "awake");
    CHECK(start("40MiB", gpu).out == "started\n");
    CHECK(only.host.state() == "asleep");
    only.request();
    check_ended(start("40MiB", gpu, "25s", {"--wait", "0s"}), 1,
                mentions("it was woken") && !mentions("waits for"));
    only.host.sleep();
    only.request();
    const auto begin = [&](const Arguments& more) {
        const Arguments run{command_file("gpu-run"), "--need", "40MiB"};
        return Process(Launch{with(with(run, more), {"--", "echo", "started"}),
                              with(machine.devices.environment(), {"CUDA_VISIBLE_DEVICES=" + gpu})});
    };
    auto line = line_for(only.host);
    auto unhurried = begin({"--min-awake", fmt::format("{}s", 7 * k_slowness)}); // less than it waits: 30 s
    pause_for(Milliseconds(5'000));
    REQUIRE(becomes_true([&] { return line.lock(); }));
    pause_for(Milliseconds(6'000)); // past the 10 s for which its first try waits for others
    line.unlock();
    const auto after = unhurried.finish();
    CHECK(after.out == "started\n");
    CHECK_THAT(after.err, mentions(" s for 40.0 MiB on GPU") && mentions("gpu-run: waits at most 2"));
    Host small(machine.model("small"));
    small.tell("alloc weights 2097152 0");
    small.sleep();
    only.request();
    auto waiting = begin({"--wait", "60s", "--min-awake", "600s"});
    await_open(waiting, "room-" + gpu);
    REQUIRE(becomes_true([&] {
        return waiting.errors().find("may sleep in 9 min") != std::string::npos;
    })); // whom it waits for
    CHECK_THAT(waiting.errors(), mentions("gpu-run: waits at most 5"));
    small.wake({"--make-room", "--min-awake", "0s", "--wait", "5s"}); // there is room for it
    only.host.sleep();
    CHECK(waiting.finish().out == "started\n");
}

TEST_CASE("Room: an allocation that finds no memory has the agent say once who has it", "[room]") {
    const Machine machine;
    Model first(machine.model("first"));
    first.request();
    Host second(machine.model("second"));
    CHECK_THAT(second.ask("alloc weights 50331648 0"), mentions("error"));
    const auto said = fmt::format(
        "{} (first) has 32.0 MiB and could sleep; make room with gpu-reclaim --need 48MiB --gpu {}",
        first.host.pid(), first.host.report(k_uuid));
    CHECK(becomes_true([&] { // a neighbour that is slow to answer is asked again
        CHECK_THAT(second.ask("alloc weights 50331648 0"), mentions("error"));
        return second.process().errors().find(said) != std::string::npos;
    }));
    REQUIRE(second.command("gpu-sleep").status == 0);
    const auto errors = second.process().errors();
    CHECK(errors.find("gpu-reclaim") == errors.rfind("gpu-reclaim"));
    CHECK(first.host.state() == "awake");
}

TEST_CASE("Room: who has memory and does not answer is named, and holds nobody up", "[room]") {
    const Machine machine;
    Model model(machine.model("model"));
    Model other(machine.model("other"));
    other.request();
    REQUIRE(::kill(other.host.pid(), SIGSTOP) == 0);
    const auto start = Clock::now();
    const auto output = machine.run(
        "gpu-wake", {std::to_string(model.host.pid()), "--make-room", "--wait", "0s", "--min-awake", "0s"},
        true);
    const auto taken = Clock::now() - start;
    REQUIRE(::kill(other.host.pid(), SIGCONT) == 0);
    CHECK(output.status == 7);
    CHECK_THAT(output.err, mentions(fmt::format("{} (", other.host.pid())));
    CHECK_THAT(output.err, mentions(fmt::format("it is stopped (see gpu-doctor {})", other.host.pid())));
    CHECK(taken < Milliseconds(8'000));
}

TEST_CASE("Room: a touch that makes no room says who has the memory", "[room]") {
    const bool can_sleep = GENERATE(true, false);
    const Machine machine;
    const auto variables =
        with(machine.devices.environment(), {"GPU_SLEEP_CAPTURE=1", "GPU_SLEEP_ON_TOUCH=wake"});
    Model first(variables), second(variables);
    first.request();
    if (!can_sleep) REQUIRE(first.host.command("gpu-inhibit").status == 0);
    second.begin_request();
    const auto words = fmt::format("{} has 32.0 MiB{}", first.host.pid(),
                                   can_sleep ? " and could sleep" : ": sleeps are inhibited");
    CHECK(second.says(words));
    const auto advice = fmt::format("gpu-wake {} --make-room", second.host.pid());
    CHECK(mentions(advice).match(second.host.process().errors()) == can_sleep);
    CHECK(second.host.report(k_place) == "null");
    CHECK(first.host.state() == "awake");
    REQUIRE(first.host.command("gpu-sleep", {"--ignore-inhibitors"}).status == 0);
    second.end_request();
}
