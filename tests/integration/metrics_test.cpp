// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a process counts of its transitions, and how gpu-ps writes it for Prometheus.

#include "shared_devices.hpp"
#include "support/host.hpp"
#include "support/scratch.hpp"

#include <nlohmann/json.hpp>

#include <map>

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

/// The transitions of a process, by their operation.
std::map<std::string, nlohmann::json> transitions_of(const Host& host) {
    const auto output = host.command("gpu-ps", {"--json"});
    INFO(output.out);
    REQUIRE(output.status == 0);
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

} // namespace

TEST_CASE("Transitions: each is counted once, by what it was and how it ended", "[metrics]") {
    const Scratch scratch;
    Host host;
    host.tell("alloc weights 4194304 0");
    CHECK(transitions_of(host).empty());
    CHECK(host.command("gpu-sleep", {"--dry-run"}).status == 0);
    CHECK(host.command("gpu-wake").status == 0); // it is awake
    CHECK(transitions_of(host).empty());

    for (int i = 0; i < 2; ++i) {
        CHECK(host.command("gpu-sleep").status == 0);
        CHECK(host.command("gpu-sleep").status == 0); // it sleeps already
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
    for (const auto& [operation, each] : counts) {
        INFO(operation);
        CHECK(sum_of_durations(each) == each["done"]);
        CHECK(each["done_seconds"].get<double>() > 0);
    }
    host.tell("wake");
    CHECK(transitions_of(host)["wake"]["done"] == 3);
}

TEST_CASE("Transitions: a wake that waits for GPU memory is counted when it ends, with its wait",
          "[metrics]") {
    const SharedDevices devices{"67108864"};
    Host host{devices.environment()};
    Host rival{devices.environment()};
    host.tell("alloc weights 33554432 0");
    REQUIRE(host.command("gpu-sleep").status == 0);
    rival.tell("alloc weights 41943040 0");

    const auto refused = host.command("gpu-wake", {"--wait", "300ms"});
    CHECK(refused.status == 7);
    auto wakes = transitions_of(host)["wake"];
    CHECK(wakes["done"] == 0);
    CHECK(wakes["failures"] == nlohmann::json::parse(R"([{"code": "out_of_device_memory", "count": 1}])"));

    auto waiting = host.start("gpu-wake", {"--wait", "60s"});
    pause_for(Milliseconds(300));
    CHECK(transitions_of(host)["wake"] == wakes);
    rival.tell("free 0");
    CHECK(waiting.finish().status == 0);
    wakes = transitions_of(host)["wake"];
    CHECK(wakes["done"] == 1);
    CHECK(wakes["done_seconds"].get<double>() > 0.2);
}

TEST_CASE("Status: names each device by its UUID, as the management library does", "[metrics]") {
    Host host;
    host.tell("alloc weights 4194304 0");
    host.tell("alloc cache 4194304 1");
    const auto output = host.command("gpu-ps", {"--json"});
    CHECK(output.json("/processes/0/report/devices/0/uuid") == "GPU-51302d51-0000-0000-0000-000000000000");
    CHECK(output.json("/processes/0/report/devices/1/uuid") == "GPU-51302d51-0000-0000-0000-000000000001");
    CHECK(output.json("/processes/0/report/devices/2") == "none");
}
