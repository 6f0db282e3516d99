// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How fast host memory is made ready for contents, by size of piece and number of threads: populated and,
// where there is a driver, pinned. Decides HostArena::k_piece_bytes and ArenaPreparer::Options::threads. And
// how long a piece takes that gives half of its memory back.

#include "contents/pinner.hpp"
#include "driver/context.hpp"
#include "store/arena_preparer.hpp"
#include "store/host_arena.hpp"

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace {

using namespace gpu_sleep;
using store::ArenaPreparer;
using store::HostArena;

constexpr Bytes k_total_bytes = 2 * k_gib;

/// The driver with a context on its first device. Never destroyed: at exit the driver takes no calls.
class Driver {
public:
    /// Null where there is no driver or no device.
    static Driver* get() {
        static Driver* const driver = open().release();
        return driver;
    }
    [[nodiscard]] store::Pinner& pinner() noexcept { return pinner_; }

private:
    explicit Driver(const driver::Api& api) : api_(api), pinner_(api_) {}

    static std::unique_ptr<Driver> open() {
        const auto api = driver::Api::load();
        if (!api || api->cuInit(0) != CUDA_SUCCESS) return nullptr;
        std::unique_ptr<Driver> driver(new Driver(*api));
        auto context = driver::PrimaryContext::retain(driver->api_, 0);
        if (!context) return nullptr;
        driver->context_.emplace(*std::move(context));
        return driver;
    }

    driver::Api api_;
    std::optional<driver::PrimaryContext> context_;
    contents::DriverPinner pinner_;
};

/// Makes k_total_bytes ready in arenas of one piece each, so that any size of piece up to the arena's can be
/// tried. False if it could not be done.
bool prepare_all(std::vector<std::unique_ptr<HostArena>>& arenas, unsigned threads) {
    std::vector<HostArena*> pointers;
    for (const auto& arena : arenas) pointers.push_back(arena.get());
    ArenaPreparer::Options options;
    options.threads = threads;
    const auto preparer = ArenaPreparer::start(std::move(pointers), std::move(options));
    if (!preparer) return false;
    for (const auto& arena : arenas)
        if (!(*preparer)->wait(*arena, 0)) return false;
    return true;
}

void prepare(benchmark::State& state, store::Pinner* pinner) {
    const auto piece_bytes = static_cast<Bytes>(state.range(0)) * k_mib;
    for (auto _ : state) {
        std::vector<std::unique_ptr<HostArena>> arenas;
        for (Bytes i = 0; i < k_total_bytes / piece_bytes; ++i) {
            auto arena = HostArena::create(piece_bytes, pinner);
            if (!arena) return state.SkipWithError(arena.error().message.c_str());
            arenas.push_back(*std::move(arena));
        }
        if (!prepare_all(arenas, static_cast<unsigned>(state.range(1))))
            return state.SkipWithError("the memory could not be made ready");
        state.PauseTiming();
        arenas.clear();
        state.ResumeTiming();
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(k_total_bytes));
}

void populate(benchmark::State& state) {
    prepare(state, nullptr);
}

void populate_and_pin(benchmark::State& state) {
    if (Driver::get() == nullptr) return state.SkipWithError("there is no driver, or no device");
    prepare(state, &Driver::get()->pinner());
}

/// Every other part of a piece has died.
void shrink(benchmark::State& state) {
    if (Driver::get() == nullptr) return state.SkipWithError("there is no driver, or no device");
    const auto part_bytes = static_cast<Bytes>(state.range(0)) * k_mib;
    for (auto _ : state) {
        state.PauseTiming();
        auto arena = HostArena::create(HostArena::k_piece_bytes, &Driver::get()->pinner());
        if (!arena) return state.SkipWithError(arena.error().message.c_str());
        std::vector<std::unique_ptr<HostArena>> arenas;
        arenas.push_back(*std::move(arena));
        if (!prepare_all(arenas, 1)) return state.SkipWithError("the memory could not be made ready");
        std::vector<std::span<const std::byte>> needed;
        for (Bytes at = 0; at < HostArena::k_piece_bytes; at += 2 * part_bytes)
            needed.emplace_back(arenas.front()->data() + at, part_bytes);
        state.ResumeTiming();
        if (arenas.front()->shrink(0, needed) != HostArena::k_piece_bytes / 2)
            return state.SkipWithError("the memory was not given back");
        state.PauseTiming();
        arenas.clear();
        state.ResumeTiming();
    }
}

void pieces_and_threads(benchmark::internal::Benchmark* run) {
    run->ArgNames({"piece_mib", "threads"})->UseRealTime()->Unit(benchmark::kMillisecond)->MinTime(0.2);
    run->ArgsProduct({{2, 8, 32, 128}, {1, 2, 4, 6, 8}});
}

BENCHMARK(populate)->Apply(pieces_and_threads);
BENCHMARK(populate_and_pin)->Apply(pieces_and_threads);
BENCHMARK(shrink)
    ->ArgName("part_mib")
    ->Arg(2)
    ->Arg(16)
    ->Arg(64)
    ->Iterations(16)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

} // namespace

BENCHMARK_MAIN();
