// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Many threads under way while the process sleeps and wakes a thousand times.

#include "../intercepted_host.hpp"

#include "support/catch.hpp"

#include <cstdlib>
#include <map>
#include <sstream>

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

/// GPU_SLEEP_STRESS_CYCLES, to look longer or shorter.
int cycles() {
    constexpr int k_cycles = 1000;
    constexpr int k_sanitized_cycles = 100;
    const char* asked = std::getenv("GPU_SLEEP_STRESS_CYCLES");
    if (asked) return std::atoi(asked);
    return is_sanitized() ? k_sanitized_cycles : k_cycles;
}

} // namespace

TEST_CASE("Stress: 16 threads lose nothing while the process sleeps and wakes, wholly and by tag",
          "[stress]") {
    constexpr int k_limit_seconds = 900;
    auto launch = captured_launch(k_runtime);
    launch.command.insert(launch.command.end(),
                          {"stress", "16", std::to_string(cycles()), std::to_string(k_limit_seconds)});
    Process program(launch);
    const auto status = program.wait_for(std::chrono::seconds(k_limit_seconds + 10));
    INFO("standard error: " << program.errors());
    REQUIRE(status == 0);
    std::istringstream words(program.read_line());
    std::map<std::string, std::uint64_t> figures;
    std::string name;
    for (std::uint64_t figure = 0; words >> name >> figure;) figures[name] = figure;
    CHECK(figures["cycles"] == static_cast<std::uint64_t>(cycles()));
    CHECK(figures["iterations"] >= figures["cycles"]);
    CHECK(figures["captures"] > 0);
    CHECK(figures["illegal"] == 0);
    CHECK(figures["broken"] == 0);
}
