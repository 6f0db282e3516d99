// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Models that take turns on one GPU.

#include "bench/sleep_cases.hpp"

#include <algorithm>
#include <chrono>

namespace gpu_sleep::bench {
namespace {

/// Who has the model that leaves sleep.
enum class By { command, request };

/// Two models, of which one has the GPU.
class Pair {
public:
    [[nodiscard]] static Result<Pair> start(const Bench& bench, By by) {
        Pair pair(by);
        std::vector<std::string> environment{"GPU_SLEEP_CAPTURE=1"}; // its kernels wait while it sleeps
        if (by == By::request)
            environment.insert(environment.end(), {"GPU_SLEEP_MAKE_ROOM=1", "GPU_SLEEP_MIN_AWAKE=0"});
        for (int i = 0; i < 2; ++i) {
            auto model = Subject::start(environment);
            if (!model) return std::move(model).error();
            pair.models_.push_back(*std::move(model));
            GPU_SLEEP_TRY(pair.models_.back().hold("weights", k_offload, bench.scaled(large_model())));
        }
        if (const auto slept = pair.models_.back().sleep(k_until_used); !slept) return slept.error();
        if (by == By::request) GPU_SLEEP_TRY(pair.fill_gpu());
        return pair;
    }

    /// Has the one that sleeps run a kernel, which wakes it once the other sleeps. Returns the seconds from
    /// the decision, or the request, until that kernel is done.
    [[nodiscard]] Result<double> turn() {
        auto& leaves = models_[awake_];
        auto& comes = models_[1 - awake_];
        const auto start = Clock::now();
        if (by_ == By::command)
            if (const auto slept = leaves.sleep(k_until_used); !slept) return slept.error();
        if (const auto ran = comes.launch(1); !ran) return ran.error();
        awake_ = 1 - awake_;
        return std::chrono::duration<double>(Clock::now() - start).count();
    }

private:
    static inline const std::vector<std::string> k_until_used{"--on-touch", "wake"};

    explicit Pair(By by) noexcept : by_(by) {}

    /// A third process takes what is left, so that there is room for one of them.
    Result<void> fill_gpu() {
        constexpr Bytes k_left = 2 * k_gib;
        auto filler = Subject::start();
        if (!filler) return std::move(filler).error();
        const auto memory = filler->gpu_memory();
        if (!memory) return memory.error();
        others_.push_back(*std::move(filler));
        if (memory->free <= k_left) return {};
        return others_.back().hold_plainly(in_large_ranges(memory->free - k_left));
    }

    By by_;
    std::vector<Subject> models_;
    std::vector<Subject> others_;
    std::size_t awake_ = 0;
};

Result<void> measure_turns(Bench& bench, By by, const std::string& name) {
    std::vector<double> first;
    std::vector<double> later;
    const auto& settings = bench.settings();
    for (unsigned i = 0; i < std::min(2U, settings.first_sleeps); ++i) {
        auto pair = Pair::start(bench, by);
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
    figures.add({name + ", a first sleep in it", "s", first, bench.target(0.9), limit});
    figures.add({name, "s", later, bench.target(0.40), limit});
    return {};
}

} // namespace

Result<void> measure_switch(Bench& bench) {
    GPU_SLEEP_TRY(measure_turns(bench, By::command, "two 8B models: switch by a command and a request"));
    if (!bench.devices().is_simulated)
        return measure_turns(bench, By::request, "two 8B models: switch by a request alone");
    bench.figures().note(
        "switches by a request alone were left out: each process has a simulated GPU of its own");
    return {};
}

} // namespace gpu_sleep::bench
