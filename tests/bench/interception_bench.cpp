// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What interception costs a program that is awake: one passage of the gate, a launch, and allocating and
// freeing, beside the same calls that are not intercepted. To be run under gpu-run.

#include "base/symbols.hpp"
#include "bench/figures.hpp"
#include "driver/context.hpp"
#include "driver/kernels/fingerprint.hpp"
#include "driver/kernels/image.hpp"
#include "gate/gate.hpp"

#include <CLI/CLI.hpp>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

using namespace gpu_sleep;

namespace {

struct Options {
    std::string json;
    unsigned repeats = 7;
    unsigned threads = 16;
    bool check = false;
};

/// The calls that are compared, as a program gets them, or past the agent.
struct Calls {
    decltype(&::cuLaunchKernel) launch = nullptr;
    decltype(&::cuStreamSynchronize) synchronize = nullptr;
    decltype(&::cuMemAlloc) allocate = nullptr;
    decltype(&::cuMemFree) free = nullptr;
    decltype(&::cuMemAllocAsync) allocate_async = nullptr;
    decltype(&::cuMemFreeAsync) free_async = nullptr;

    explicit Calls(SymbolLookup look_up) {
        void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
        find(look_up, driver, launch, "cuLaunchKernel");
        find(look_up, driver, synchronize, "cuStreamSynchronize");
        find(look_up, driver, allocate, "cuMemAlloc_v2");
        find(look_up, driver, free, "cuMemFree_v2");
        find(look_up, driver, allocate_async, "cuMemAllocAsync");
        find(look_up, driver, free_async, "cuMemFreeAsync");
    }

private:
    template <class Function>
    static void find(SymbolLookup look_up, void* driver, Function& function, const char* symbol) {
        function = reinterpret_cast<Function>(look_up(driver, symbol));
    }
};

/// Seconds for each of `count` calls of `work`, on each of `threads` threads at once.
double seconds_each(unsigned threads, std::size_t count, const std::function<void(std::size_t)>& work) {
    std::vector<double> seconds(threads);
    const auto run = [&](unsigned index) {
        const auto start = Clock::now();
        work(count);
        seconds[index] =
            std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(count);
    };
    std::vector<std::thread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(run, i);
    run(0);
    for (auto& other : others) other.join();
    return bench::median(seconds);
}

std::vector<double> sampled(unsigned repeats, double scale, const std::function<double()>& measure) {
    static_cast<void>(measure()); // the first finds cold caches and makes what is made once
    std::vector<double> samples;
    for (unsigned i = 0; i < repeats; ++i) samples.push_back(measure() * scale);
    return samples;
}

void add_passages(bench::Figures& figures, const Options& options) {
    constexpr std::size_t k_passages = 2'000'000;
    const auto pass = [](std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            const gate::Passage passage(gate::Touch::submits, "cuLaunchKernel");
            asm volatile("" : : "r"(&passage) : "memory");
        }
    };
    constexpr double k_ns = 1e9;
    constexpr double k_target_alone = 8;
    constexpr double k_target_together = 12;
    figures.add({"one passage, 1 thread",
                 "ns",
                 sampled(options.repeats, k_ns, [&] { return seconds_each(1, k_passages, pass); }),
                 k_target_alone,
                 {}});
    // With more threads than cores some wait for a core, not for the gate.
    const auto threads = std::min(options.threads, std::max(1U, std::thread::hardware_concurrency()));
    figures.add({fmt::format("one passage, {} threads at once", threads),
                 "ns",
                 sampled(options.repeats, k_ns, [&] { return seconds_each(threads, k_passages, pass); }),
                 k_target_together,
                 {}});
}

/// Launches of a kernel that finds nothing to do.
double measure_launches(const Calls& calls, CUfunction kernel) {
    constexpr std::size_t k_launches = 500; // fewer than the driver queues
    return seconds_each(1, k_launches, [&](std::size_t count) {
        void* no_blocks = nullptr;
        std::uint64_t none = 0;
        driver::FingerprintKey key{};
        void* arguments[] = {static_cast<void*>(&no_blocks), static_cast<void*>(&no_blocks), &none, &key};
        for (std::size_t i = 0; i < count; ++i)
            calls.launch(kernel, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr);
        calls.synchronize(nullptr);
    });
}

double measure_allocations(const Calls& calls, std::size_t bytes, bool in_stream) {
    constexpr std::size_t k_at_once = 16;
    constexpr std::size_t k_rounds = 4;
    return seconds_each(1, k_rounds * k_at_once, [&](std::size_t count) {
        std::vector<CUdeviceptr> addresses(k_at_once);
        for (std::size_t round = 0; round < count / k_at_once; ++round) {
            for (auto& address : addresses)
                in_stream ? calls.allocate_async(&address, bytes, nullptr) : calls.allocate(&address, bytes);
            for (const auto address : addresses)
                in_stream ? calls.free_async(address, nullptr) : calls.free(address);
        }
        if (in_stream) calls.synchronize(nullptr);
    });
}

void add_pair(bench::Figures& figures, const std::string& name, unsigned repeats,
              std::optional<double> most_ratio, const std::function<double(const Calls&)>& measure) {
    constexpr double k_us = 1e6;
    const Calls intercepted(&::dlsym);
    const Calls plain(&find_symbol);
    const auto without = sampled(repeats, k_us, [&] { return measure(plain); });
    const auto with = sampled(repeats, k_us, [&] { return measure(intercepted); });
    const auto least = bench::median(without);
    figures.add({name, "us", with, most_ratio ? std::optional(*most_ratio * least) : std::nullopt, least});
}

Result<bench::Figures> run(const Options& options) {
    auto api = driver::Api::load();
    if (!api) return std::move(api).error();
    if (Calls(&::dlsym).launch == Calls(&find_symbol).launch)
        return make_error(ErrorCode::invalid_argument, "nothing is intercepted here: run it under gpu-run");
    // The program's own cuInit, which starts the agent.
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
    reinterpret_cast<decltype(&::cuInit)>(::dlsym(driver, "cuInit"))(0);
    auto context = driver::PrimaryContext::retain(*api, 0);
    if (!context) return std::move(context).error();
    const driver::CurrentContext current(*api, context->get());
    CUmodule module = nullptr;
    CUfunction kernel = nullptr;
    GPU_SLEEP_DRIVER_TRY(*api, cuModuleLoadData, "cannot load a kernel", &module, driver::kernel_image());
    GPU_SLEEP_DRIVER_TRY(*api, cuModuleGetFunction, "cannot find a kernel", &kernel, module,
                         driver::k_fingerprint_kernel);

    char name[256] = {};
    GPU_SLEEP_DRIVER_TRY(*api, cuDeviceGetName, "cannot ask for the device's name", name, sizeof(name) - 1,
                         0);
    bench::Figures figures("interception_bench",
                           fmt::format("{}; the limit is of the same call without interception", name));
    add_passages(figures, options);
    add_pair(figures, "an empty launch", options.repeats, {},
             [&](const Calls& calls) { return measure_launches(calls, kernel); });
    constexpr double k_most = 1.2;
    for (const auto bytes : {Bytes{4096}, 256 * k_kib, 2 * k_mib, 20 * k_mib, 256 * k_mib})
        add_pair(figures, fmt::format("allocate and free {}", format_bytes(bytes)), options.repeats, k_most,
                 [&](const Calls& calls) { return measure_allocations(calls, bytes, false); });
    for (const auto bytes : {Bytes{4096}, k_mib, 20 * k_mib})
        add_pair(figures, fmt::format("the same in stream order, {}", format_bytes(bytes)), options.repeats,
                 k_most, [&](const Calls& calls) { return measure_allocations(calls, bytes, true); });
    GPU_SLEEP_DRIVER_TRY(*api, cuModuleUnload, "cannot unload a kernel", module);
    return figures;
}

} // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app{"Measures what interception costs a program that is awake. Run it under gpu-run."};
    app.add_option("--repeats", options.repeats, "measurements of a kind")->check(CLI::Range(1, 1000));
    app.add_option("--threads", options.threads, "that pass the gate at once")->check(CLI::Range(1, 1000));
    app.add_option("--json", options.json, "file for the figures");
    app.add_flag("--check", options.check, "end with 1 when a target is missed");
    CLI11_PARSE(app, argc, argv);
    const auto figures = run(options);
    if (figures) return bench::finish(*figures, options.json, options.check);
    std::fprintf(stderr, "interception_bench: %s\n", figures.error().message.c_str());
    return EXIT_FAILURE;
}
