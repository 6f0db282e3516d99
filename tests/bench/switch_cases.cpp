// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Models that take turns on one GPU.

#include "bench/sleep_cases.hpp"

#include <algorithm>
#include <chrono>

namespace gpu_sleep::bench {
namespace {

/// Two models, of which one has the GPU.
class Pair {
public:
    [[nodiscard]] static Result<Pair> start(const Bench& bench) {
        Pair pair;
        for (int i = 0; i < 2; ++i) {
            auto model = Subject::start({"GPU_SLEEP_CAPTURE=1"}); // its kernels wait while it sleeps
            if (!model) return std::move(model).error();
            pair.models_.push_back(*std::move(model));
            GPU_SLEEP_TRY(pair.models_.back().hold("weights", k_offload, bench.scaled(large_model())));
        }
        if (const auto slept = pair.models_.back().sleep(k_until_used); !slept) return slept.error();
        return pair;
    }

    /// Puts the one that is awake to sleep, and has the other run a kernel, which wakes it. Returns the
    /// seconds from the decision until that kernel is done.
    [[nodiscard]] Result<double> turn() {
        auto& leaves = models_[awake_];
        auto& comes = models_[1 - awake_];
        const auto start = Clock::now();
        if (const auto slept = leaves.sleep(k_until_used); !slept) return slept.error();
        if (const auto ran = comes.launch(1); !ran) return ran.error();
        awake_ = 1 - awake_;
        return std::chrono::duration<double>(Clock::now() - start).count();
    }

private:
    static inline const std::vector<std::string> k_until_used{"--on-touch", "wake"};

    std::vector<Subject> models_;
    std::size_t awake_ = 0;
};

} // namespace

Result<void> measure_switch(Bench& bench) {
    std::vector<double> first;
    std::vector<double> later;
    const auto& settings = bench.settings();
    for (unsigned i = 0; i < std::min(2U, settings.first_sleeps); ++i) {
        auto pair = Pair::start(bench);
        if (!pair) return std::move(pair).error();
        for (unsigned j = 0; j <= settings.repeats; ++j) {
            bench.pause();
            const auto turn = pair->turn();
            if (!turn) return turn.error();
            (j == 0 ? first : later).push_back(*turn);
        }
    }
    const auto limit = static_cast<double>(bench.total(large_model())) / bench.link().to_device;
    auto& figures = bench.figures();
    figures.add({"two 8B models: switch, a first sleep in it", "s", first, bench.target(0.9), limit});
    figures.add({"two 8B models: switch", "s", later, bench.target(0.40), limit});
    return {};
}

} // namespace gpu_sleep::bench
