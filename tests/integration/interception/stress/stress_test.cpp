// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Many threads under way while the process sleeps and wakes a thousand times.

#include "../intercepted_host.hpp"

using namespace gpu_sleep::test;

namespace {

constexpr int k_limit_seconds = 900;

/// GPU_SLEEP_STRESS_CYCLES, to look longer or shorter.
int cycles() {
    constexpr int k_cycles = 1000;
    constexpr int k_sanitized_cycles = 100;
    const char* asked = std::getenv("GPU_SLEEP_STRESS_CYCLES");
    if (asked) return std::atoi(asked);
    return is_sanitized() ? k_sanitized_cycles : k_cycles;
}

/// Starts the program with 16 threads.
Launch stress_launch(int cycles) {
    auto launch = captured_launch(k_runtime);
    launch.command.insert(launch.command.end(),
                          {"stress", "16", std::to_string(cycles), std::to_string(k_limit_seconds)});
    return launch;
}

/// Nothing was lost, and no work touched what was not there. Returns its figures.
std::map<std::string, std::uint64_t> figures_of(Process& program, std::optional<int> status) {
    INFO("standard error: " << program.errors());
    REQUIRE(status == 0);
    std::istringstream words(program.read_line());
    std::map<std::string, std::uint64_t> figures;
    std::string name;
    for (std::uint64_t figure = 0; words >> name >> figure;) figures[name] = figure;
    CHECK(figures["iterations"] >= figures["cycles"]);
    CHECK(figures["captures"] > 0);
    CHECK(figures["illegal"] == 0);
    CHECK(figures["broken"] == 0);
    return figures;
}

} // namespace

TEST_CASE("Stress: 16 threads lose nothing as the process sleeps and wakes, wholly and by tag", "[stress]") {
    Process program(stress_launch(cycles()));
    const auto status = program.wait_for(std::chrono::seconds(k_limit_seconds + 10));
    CHECK(figures_of(program, status)["cycles"] == static_cast<std::uint64_t>(cycles()));
}

TEST_CASE("Stress: they lose nothing while contents move to host memory and back besides", "[live][stress]") {
    int moves = 0;
    for (int runs = 0; moves <= 2 && runs < 3; ++runs) { // few fit into one on a busy machine
        Controlled program(stress_launch(cycles() / 5));
        std::optional<int> status;
        while (!(status = program.process().wait_for(Milliseconds(1)))) {
            const auto moved = program.command("gpu-sleep", {"--live", "--json"});
            moves += moved.status == 0 && moved.json("/processes/0/report/changed") == "true";
            static_cast<void>(program.command("gpu-wake", {"--live-bytes", "8MiB"}));
        }
        static_cast<void>(figures_of(program.process(), status));
    }
    CHECK(moves > 2);
}
