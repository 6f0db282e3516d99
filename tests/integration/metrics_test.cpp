// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The counts that a process keeps of its transitions, and the metrics that gpu-ps writes for Prometheus.

#include "support/files_of.hpp"
#include "support/shared_devices.hpp"

#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include <regex>

using namespace gpu_sleep::test;

namespace {

/// The transitions of a process, by their operation.
std::map<std::string, nlohmann::json> transitions_of(const Host& host) {
    const auto output = ended(host.command("gpu-ps", {"--json"}));
    const auto all = nlohmann::json::parse(output.out);
    std::map<std::string, nlohmann::json> found;
    for (const auto& each : all.at("/processes/0/report/transitions"_json_pointer))
        found[each.at("operation").get<std::string>()] = each;
    return found;
}

std::uint64_t sum_of_durations(const nlohmann::json& transition) {
    std::uint64_t sum = 0;
    for (const auto& each : transition.at("durations")) sum += each.at("count").get<std::uint64_t>();
    return sum;
}

/// Has Prometheus's own check look at metrics; where it is not there, the test goes on.
void check_form(const std::string& text, const Scratch& scratch) {
    const auto file = scratch.file("metrics.txt");
    std::ofstream(file) << text;
    INFO(text);
    if (run({{"sh", "-c", "command -v promtool"}}).status != 0)
        WARN("skipped: there is no promtool");
    else
        CHECK(succeeded(run({{"sh", "-c", "promtool check metrics <\"$1\"", "sh", file}})));
}

} // namespace

TEST_CASE("Transitions: each is counted once, by what it was and how it ended", "[quick][threads][metrics]") {
    const Scratch scratch;
    LoadedHost host(captured());
    CHECK(transitions_of(host).empty());
    CHECK(host.command("gpu-sleep", {"--dry-run"}).status == 0);
    CHECK(host.command("gpu-wake").status == 0); // it is awake
    CHECK(transitions_of(host).empty());

    for (int i = 0; i < 2; ++i) {
        CHECK(host.command("gpu-sleep").status == 0);
        CHECK(host.command("gpu-sleep").status == 0); // it is already asleep
        CHECK(host.command("gpu-sleep", {"--on-touch", "fail"}).status == 0);
        CHECK(host.command("gpu-wake").status == 0);
    }
    CHECK(host.command("gpu-inhibit").status == 0);
    CHECK(host.command("gpu-sleep").status != 0);
    CHECK(host.command("gpu-inhibit", {"--release"}).status == 0);
    host.tell("sleep 1"); // the program itself
    CHECK(host.command("gpu-sleep", {"--store", "file", "--dir", scratch.path().string()}).status == 0);

    auto counts = transitions_of(host);
    REQUIRE(counts.size() == 3);
    CHECK(counts["sleep"]["done"] == 3);
    CHECK(counts["sleep"]["failures"] == nlohmann::json::parse(R"([{"code": "inhibited", "count": 1}])"));
    CHECK(counts["wake"]["done"] == 2);
    CHECK(counts["wake"]["failures"].empty());
    CHECK(counts["move"]["done"] == 1);
    host.process().signal(SIGSTOP);
    CHECK(transitions_of(host) == counts);
    host.process().signal(SIGCONT);
    for (const auto& [operation, each] : counts) {
        INFO(operation);
        CHECK(sum_of_durations(each) == each["done"]);
        CHECK(each["done_seconds"].get<double>() > 0);
    }
    host.tell("wake");
    CHECK(transitions_of(host)["wake"]["done"] == 3);
}

TEST_CASE("Transitions: a wake that waits for GPU memory is counted at its end, with its wait", "[metrics]") {
    const SharedDevices devices{64 * k_mib};
    Host host{devices.environment()};
    Host rival{devices.environment()};
    host.tell("alloc weights 33554432 0");
    REQUIRE(host.command("gpu-sleep").status == 0);
    rival.tell("alloc weights 41943040 0");

    const auto refused = ended(host.command("gpu-wake", {"--wait", "300ms"}), 7);
    auto wakes = transitions_of(host)["wake"];
    CHECK(wakes["done"] == 0);
    CHECK(wakes["failures"] == nlohmann::json::parse(R"([{"code": "out_of_device_memory", "count": 1}])"));

    auto waiting = host.start("gpu-wake", {"--wait", "60s"});
    await_request(waiting);
    pause_for(Milliseconds(300));
    CHECK(transitions_of(host)["wake"] == wakes);
    rival.tell("free 0");
    CHECK(waiting.finish().status == 0);
    wakes = transitions_of(host)["wake"];
    CHECK(wakes["done"] == 1);
    CHECK(wakes["done_seconds"].get<double>() > 0.2);
    for (std::size_t i = 0; i < 4; ++i) CHECK(wakes["durations"][i]["count"] == 0); // up to 0.1 s
}

TEST_CASE("Metrics: of a real process, in the form that a server takes", "[quick][metrics]") {
    const Scratch scratch;
    Host host({"GPU_SLEEP_NAME=metered", "GPU_SLEEP_CAPTURE=1"});
    host.tell("alloc weights 4194304 1");
    REQUIRE(host.command("gpu-sleep").status == 0);
    const auto output = ended(host.command("gpu-ps", {"--prometheus"}));
    const std::string gpu = R"(gpu="GPU-6770752d-736c-6565-702d-73696d2d2d01")";
    CHECK_THAT(output.out, mentions(gpu + R"(,tag="weights",place="host"} 4194304)"));
    CHECK_THAT(output.out, mentions(R"(name="metered",engine="agent",state="asleep"} 1)"));
    CHECK_THAT(output.out, mentions(R"(,operation="sleep",result="done"} 1)"));
    CHECK_THAT(output.out, mentions(fmt::format(R"(name="metered",pid="{}",job="")", host.pid())));
    // Nothing else is counted for each process.
    std::istringstream lines(output.out);
    for (std::string line; std::getline(lines, line);)
        CHECK(
            (line.find(R"(,pid=")") == std::string::npos ||
             std::regex_search(line, std::regex("^gpu_sleep_(process_info|transition_duration_seconds_[a-z]+|"
                                                "[a-z_]+_total)\\{"))));
    check_form(output.out, scratch);
    CHECK(host.command("gpu-ps", {"--prometheus=-"}).status == 0);

    // A process that does not answer is counted, and is no failure of the command.
    host.process().signal(SIGSTOP);
    const auto silent = host.command("gpu-ps", {"--prometheus", "--timeout", "200ms"});
    host.process().signal(SIGCONT);
    CHECK(silent.status == 0);
    CHECK_THAT(silent.out, mentions("gpu_sleep_stopped{") && mentions(R"(name="metered"} 1)") &&
                               mentions(R"(state="asleep"} 1)") && !mentions("gpu_sleep_unanswered{"));
    check_form(silent.out, scratch);
}

TEST_CASE("Metrics: what sleeps gives back its memory for as long", "[metrics]") {
    LoadedHost host({"GPU_SLEEP_NAME=metered", "GPU_SLEEP_CAPTURE=1"});
    const auto byte_seconds = [&] {
        const auto text = host.command("gpu-ps", {"--prometheus"}).out;
        const auto at = text.find("gpu_sleep_asleep_byte_seconds_total{");
        REQUIRE(at != std::string::npos);
        return std::stod(text.substr(text.find("} ", at) + 2));
    };
    CHECK(byte_seconds() == 0);
    const auto before = Clock::now();
    REQUIRE(host.command("gpu-sleep").status == 0);
    pause_for(Milliseconds(500));
    const auto asleep = byte_seconds();
    CHECK(asleep > 0.5 * 4'194'304);
    REQUIRE(host.command("gpu-wake").status == 0);
    const auto sum = byte_seconds();
    CHECK(sum > asleep);
    CHECK(sum < seconds_since(before) * 4'194'304);
    pause_for(Milliseconds(200));
    CHECK(byte_seconds() == sum);
}

TEST_CASE("Metrics: a file is replaced at once, and may be read by all", "[metrics]") {
    const Scratch scratch;
    LoadedHost host({"GPU_SLEEP_NAME=metered"});
    const auto file = scratch.file("gpu_sleep.prom");
    const auto write = [&](const std::string& where) {
        return host.command("gpu-ps", {"--prometheus=" + where});
    };
    ::umask(077);
    CHECK(write(file).status == 0);
    ::umask(022);
    struct stat first = {};
    REQUIRE(::stat(file.c_str(), &first) == 0);
    CHECK((first.st_mode & 07777) == 0644);
    CHECK_THAT(content_of(file), mentions(R"(name="metered",engine="agent",state="awake"} 1)"));
    const UniqueFd reader(::open(file.c_str(), O_RDONLY | O_CLOEXEC)); // keeps the old one
    CHECK(ended(write(file)).out.empty());
    struct stat second = {};
    REQUIRE(::stat(file.c_str(), &second) == 0);
    CHECK(second.st_ino != first.st_ino);
    CHECK(scratch.file_count() == 1);

    std::filesystem::create_symlink(file, scratch.file("link"));
    CHECK(write(scratch.file("link")).status == 2);
    CHECK(write(scratch.path().string()).status == 2);
    CHECK(write(scratch.file("none/gpu_sleep.prom")).status == 1);
    CHECK(scratch.file_count() == 2);
    CHECK(host.command("gpu-ps", {"--prometheus", "--json"}).status == 2);
    check_ended(run({{command_file("gpu-ps"), "--prometheus", file}}), 3,
                mentions("to write a file: --prometheus=" + file));
}

TEST_CASE("Metrics: looking wakes nobody, however often", "[metrics][scrapes]") {
    const auto* const asked = std::getenv("GPU_SLEEP_TEST_SCRAPES");
    const std::string scrapes = asked ? asked : "30";
    const Scratch scratch;
    LoadedHost host({"GPU_SLEEP_CAPTURE=1", "GPU_SLEEP_ON_TOUCH=wake"});
    REQUIRE(host.command("gpu-sleep").status == 0);
    const auto before = host.command("gpu-ps", {"--json"});
    const auto scraped = ended(run(
        {{"sh", "-c",
          R"(i=0; while [ $i -lt "$3" ]; do "$1" --prometheus="$4" "$2" || exit 1; i=$((i + 1)); done)", "sh",
          command_file("gpu-ps"), std::to_string(host.pid()), scrapes, scratch.file("gpu_sleep.prom")},
         {},
         true,
         Milliseconds(1'000'000)}));
    const auto after = host.command("gpu-ps", {"--json"});
    for (const auto* const figure :
         {"/processes/0/state", "/processes/0/report/gate/touches", "/processes/0/report/host_bytes",
          "/processes/0/report/tags/0/resident_bytes"})
        CHECK(before.json(figure) == after.json(figure));
    CHECK(after.json("/processes/0/state") == "asleep");
    CHECK(after.json("/processes/0/report/transitions/1") == "none"); // it has slept, and no more
}
