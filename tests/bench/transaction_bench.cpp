// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a sleep and a wake cost besides the driver's own calls, by the number of ranges: no contents are kept,
// and the time inside the simulated driver is taken off. Must grow linearly.

#include "bench/figures.hpp"
#include "driver/context.hpp"
#include "memory/heap.hpp"
#include "sleep/transactions.hpp"
#include "support/simulated_driver/control.h"

#include <CLI/CLI.hpp>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

namespace {

using namespace gpu_sleep;

struct Options {
    unsigned repeats = 5;
    std::string json;
    bool check = false;
};

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

/// Microseconds of `transaction` for each of `count` ranges. Nothing waits in it, so time without the
/// processor went to other programs, in and out of the driver.
template <class Transaction>
Result<void> measure(std::vector<double>& samples, std::size_t count, Transaction&& transaction) {
    sim_reset_counts();
    const auto start = Clock::now();
    const auto cpu_start = cpu_seconds();
    GPU_SLEEP_TRY(transaction());
    const auto total = seconds_since(start);
    const auto ran = cpu_seconds() - cpu_start;
    const auto inside = static_cast<double>(sim_nanoseconds_inside()) / 1e9;
    samples.push_back((total - inside) * (ran / total) * 1e6 / static_cast<double>(count));
    return {};
}

Result<void> measure_ranges(const driver::Api& api, std::size_t count, unsigned repeats,
                            bench::Figures& figures) {
    constexpr Bytes k_range_bytes = 2 * k_mib;
    constexpr double k_at_most_us = 2;
    ledger::Ledger ledger;
    memory::Heap heap(api, ledger);
    sleep::Transactions engine(api, ledger, {});
    sleep::Control control;
    const auto tag = ledger.tag_id("weights");
    std::vector<driver::DeviceAddress> addresses;
    for (std::size_t i = 0; i < count; ++i)
        addresses.push_back(GPU_SLEEP_TRY(heap.allocate(0, tag, k_range_bytes)));
    std::vector<double> slept, woken;
    model::SleepRequest request;
    request.level = model::Level::drop;
    for (unsigned i = 0; i < repeats; ++i) {
        model::Report report;
        GPU_SLEEP_TRY(measure(slept, count, [&] { return engine.sleep(request, control, report); }));
        GPU_SLEEP_TRY(measure(woken, count, [&] { return engine.wake({}, control, report); }));
    }
    for (const auto address : addresses) static_cast<void>(heap.free(address));
    figures.add({fmt::format("sleep of {} ranges, each", count), "us", slept, k_at_most_us, {}});
    figures.add({fmt::format("wake of {} ranges, each", count), "us", woken, k_at_most_us, {}});
    return {};
}

Result<int> run(const Options& options) {
    auto api = GPU_SLEEP_TRY(driver::Api::load());
    GPU_SLEEP_DRIVER_TRY(api, cuInit, "cannot initialise the driver", 0);
    api.cuMemsetD8Async = leave_contents;
    const auto context = GPU_SLEEP_TRY(driver::PrimaryContext::retain(api, 0));
    bench::Figures figures("transaction_bench", "simulated driver, level 2, ranges of 2 MiB");
    for (const std::size_t count : {10'000, 100'000})
        GPU_SLEEP_TRY(measure_ranges(api, count, options.repeats, figures));
    // Where the ledger outgrows the caches: 2.5 was measured, and no more from there to 400,000 ranges. A
    // quadratic cost grows tenfold.
    constexpr double k_growth = 4;
    for (const std::string what : {"sleep", "wake"}) {
        const auto few = figures.value_of(what + " of 10000 ranges, each");
        const auto many = figures.value_of(what + " of 100000 ranges, each");
        figures.add({what + ": 100000 ranges against 10000, each", "x", {*many / *few}, k_growth, {}});
    }
    return bench::finish(figures, options.json, options.check);
}

} // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app{"Measures what a transaction costs for each range, on the simulated driver."};
    app.add_option("--repeats", options.repeats, "sleeps and wakes of each size")->check(CLI::Range(1, 1000));
    app.add_option("--json", options.json, "file for the figures");
    app.add_flag("--check", options.check, "fail when a target is missed");
    CLI11_PARSE(app, argc, argv);
    ::setenv("GPU_SLEEP_SIM_MEMORY", "322122547200", 1); // 300 GiB
    const auto status = run(options);
    if (status) return *status;
    std::fprintf(stderr, "transaction_bench: %s\n", status.error().message.c_str());
    return EXIT_FAILURE;
}
