// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Models that take turns on one GPU.

#include "bench/sleep_cases.hpp"

#include <algorithm>
#include <cstddef>

namespace gpu_sleep::bench {
namespace {

const std::vector<std::string> k_until_used{"--on-touch", "wake"};

/// From the decision, or the request, until a kernel of the model that comes is done. Who has the other model
/// sleep: a command, or the request alone, on a GPU without room for both.
void measure_turns(Bench& bench, bool by_request, const std::string& name) {
    std::vector<std::string> environment{"GPU_SLEEP_CAPTURE=1"}; // kernels wait while it sleeps
    if (by_request) environment.insert(environment.end(), {"GPU_SLEEP_MAKE_ROOM=1", "GPU_SLEEP_MIN_AWAKE=0"});
    std::vector<double> first, later;
    for (unsigned i = 0; i < std::min(2U, bench.settings().first_sleeps); ++i) {
        std::vector<Subject> models;
        for (int j = 0; j < 2; ++j) models.push_back(bench.start({{"kept", large_model()}}, environment));
        models.back().sleep(k_until_used);
        Subject filler; // takes what is left, so that there is room for one of them
        constexpr Bytes k_left = 2 * k_gib;
        const auto free = filler.free_gpu_memory();
        if (by_request && free > k_left) filler.hold({"plain", Sizes((free - k_left) / k_gib, k_gib)});
        for (std::size_t j = 0; j <= bench.settings().repeats; ++j) {
            bench.pause();
            const auto start = Clock::now();
            if (!by_request) models[j % 2].sleep(k_until_used);
            models[1 - j % 2].launch(1);
            (j == 0 ? first : later).push_back(seconds_since(start));
        }
    }
    const auto limit = static_cast<double>(bench.total(large_model())) / bench.link().to_device;
    auto& figures = bench.figures();
    figures.add({name + ", a first sleep in it", "s", first, bench.target(0.9), limit});
    figures.add({name, "s", later, bench.target(0.40), limit});
}

} // namespace

void measure_switch(Bench& bench) {
    measure_turns(bench, false, "two 8B models: switch by a command and a request");
    if (!bench.device().is_simulated)
        return measure_turns(bench, true, "two 8B models: switch by a request alone");
    bench.figures().note("switches by a request alone were left out: a simulated GPU would be filled");
}

} // namespace gpu_sleep::bench
