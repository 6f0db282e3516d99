// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a sleep and a wake cost besides the driver's own calls, by the number of ranges: no contents are kept,
// and the time inside the simulated driver is taken off. Must grow linearly.

#include "bench/figures.hpp"
#include "driver/context.hpp"
#include "memory/heap.hpp"
#include "sleep/engine.hpp"
#include "support/simulated_driver/control.h"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>

namespace {

using namespace gpu_sleep;

constexpr Bytes k_range_bytes = 2 * k_mib;
constexpr const char* k_device_bytes = "322122547200"; // 300 GiB
constexpr std::size_t k_fewest = 1'000;
constexpr std::size_t k_some = 10'000;
constexpr std::size_t k_most = 100'000;

/// Zeroing is the device's work; the simulated one would need as much host memory as the ranges have.
CUresult CUDAAPI leave_contents(CUdeviceptr, unsigned char, std::size_t, CUstream) {
    return CUDA_SUCCESS;
}

/// Processor time of this thread.
double cpu_seconds() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

/// Microseconds for each range.
struct Cost {
    std::vector<double> sleep;
    std::vector<double> wake;
};

/// A heap with an engine over it, and `count` ranges of one tag.
class Workload {
public:
    Workload(const driver::Api& api, std::size_t count)
        : heap_(api, ledger_), engine_(api, ledger_, {}), count_(count) {}
    Workload(const Workload&) = delete;
    Workload& operator=(const Workload&) = delete;
    ~Workload() {
        for (const auto address : addresses_) static_cast<void>(heap_.free(address));
    }

    [[nodiscard]] Result<void> allocate() {
        const auto tag = ledger_.tag_id("weights");
        for (std::size_t i = 0; i < count_; ++i) {
            const auto address = heap_.allocate(0, tag, k_range_bytes);
            if (!address) return address.error();
            addresses_.push_back(*address);
        }
        return {};
    }

    /// One sleep and one wake.
    [[nodiscard]] Result<void> cycle(Cost& cost) {
        model::SleepRequest request;
        request.level = model::Level::drop;
        GPU_SLEEP_TRY(measure(
            cost.sleep, [&](model::Report& report) { return engine_.sleep(request, control_, report); }));
        return measure(cost.wake, [&](model::Report& report) -> Result<void> {
            const auto woken = engine_.wake({}, control_, report);
            return woken ? Result<void>() : woken.error();
        });
    }

private:
    template <class Transaction>
    [[nodiscard]] Result<void> measure(std::vector<double>& samples, Transaction&& transaction) {
        model::Report report;
        sim_reset_counts();
        const auto start = Clock::now();
        const auto cpu_start = cpu_seconds();
        GPU_SLEEP_TRY(transaction(report));
        const auto total = std::chrono::duration<double>(Clock::now() - start).count();
        const auto ran = cpu_seconds() - cpu_start;
        const auto inside = static_cast<double>(sim_nanoseconds_inside()) / 1e9;
        // Nothing waits here, so time without the processor went to other programs, in and out of the driver.
        samples.push_back((total - inside) * (ran / total) * 1e6 / static_cast<double>(count_));
        return {};
    }

    ledger::Ledger ledger_;
    memory::Heap heap_;
    sleep::Engine engine_;
    sleep::Control control_;
    std::size_t count_;
    std::vector<driver::DeviceAddress> addresses_;
};

Result<Cost> measure(const driver::Api& api, std::size_t count, unsigned repeats) {
    Workload workload(api, count);
    GPU_SLEEP_TRY(workload.allocate());
    Cost cost;
    for (unsigned i = 0; i < repeats; ++i) GPU_SLEEP_TRY(workload.cycle(cost));
    return cost;
}

struct Options {
    unsigned repeats = 5;
    double at_most_us = 2;
    /// Of the cost of each range from 10,000 ranges to 100,000, where the ledger outgrows the caches: 2.5 was
    /// measured, and no more from there to 400,000. A quadratic cost grows tenfold.
    double growth = 4;
    std::string json;
    bool check = false;
};

Result<bench::Figures> run(const driver::Api& api, const Options& options) {
    bench::Figures figures("transaction_bench", "simulated driver, level 2, ranges of 2 MiB");
    std::optional<Cost> some;
    for (const auto count : {k_fewest, k_some, k_most}) {
        auto cost = measure(api, count, options.repeats);
        if (!cost) return std::move(cost).error();
        figures.add(
            {fmt::format("sleep of {} ranges, each", count), "us", cost->sleep, options.at_most_us, {}});
        figures.add(
            {fmt::format("wake of {} ranges, each", count), "us", cost->wake, options.at_most_us, {}});
        if (count == k_some) some = *cost;
        if (count != k_most) continue;
        const auto growth = [](const std::vector<double>& more, const std::vector<double>& fewer) {
            return bench::median(more) / bench::median(fewer);
        };
        figures.add({"sleep: 100000 ranges against 10000, each",
                     "x",
                     {growth(cost->sleep, some->sleep)},
                     options.growth,
                     {}});
        figures.add({"wake: 100000 ranges against 10000, each",
                     "x",
                     {growth(cost->wake, some->wake)},
                     options.growth,
                     {}});
    }
    return figures;
}

Result<int> run_on_driver(const Options& options) {
    auto api = driver::Api::load();
    if (!api) return std::move(api).error();
    GPU_SLEEP_DRIVER_TRY(*api, cuInit, "cannot initialise the driver", 0);
    api->cuMemsetD8Async = leave_contents;
    const auto context = driver::PrimaryContext::retain(*api, 0);
    if (!context) return context.error();
    const auto figures = run(*api, options);
    if (!figures) return figures.error();
    return bench::finish(*figures, options.json, options.check);
}

} // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app{"Measures what a transaction costs for each range, on the simulated driver."};
    app.add_option("--repeats", options.repeats, "sleeps and wakes of each size")->check(CLI::Range(1, 1000));
    app.add_option("--at-most", options.at_most_us, "target, in microseconds for each range");
    app.add_option("--json", options.json, "file for the figures");
    app.add_flag("--check", options.check, "fail when a target is missed");
    CLI11_PARSE(app, argc, argv);
    ::setenv("GPU_SLEEP_SIM_MEMORY", k_device_bytes, 1);
    const auto status = run_on_driver(options);
    if (status) return *status;
    std::fprintf(stderr, "transaction_bench: %s\n", status.error().message.c_str());
    return EXIT_FAILURE;
}
