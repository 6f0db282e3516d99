// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What interception costs a program that is awake: one passage of the gate, a launch, and allocating and
// freeing, beside the same calls that are not intercepted. To be run under gpu-run.

#include "base/symbols.hpp"
#include "bench/figures.hpp"
#include "driver/context.hpp"
#include "driver/fingerprint_key.hpp"
#include "driver/kernels/fingerprint.hpp"
#include "gate/gate.hpp"

#include <CLI/CLI.hpp>
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

using namespace gpu_sleep;

namespace {

struct Options {
    std::string json;
    unsigned repeats = 7;
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
        const auto find = [&](auto& function, const char* symbol) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(look_up(driver, symbol));
        };
        find(launch, "cuLaunchKernel");
        find(synchronize, "cuStreamSynchronize");
        find(allocate, "cuMemAlloc_v2");
        find(free, "cuMemFree_v2");
        find(allocate_async, "cuMemAllocAsync");
        find(free_async, "cuMemFreeAsync");
    }
};

/// `scale` seconds for each of `count` calls of `work`, on each of `threads` threads at once, once for each
/// repeat.
std::vector<double> sampled(unsigned repeats, double scale, unsigned threads, std::size_t count,
                            const std::function<void(std::size_t)>& work) {
    std::vector<double> samples;
    for (unsigned i = 0; i <= repeats; ++i) {
        std::vector<double> seconds(threads);
        const auto run = [&](unsigned index) {
            const auto start = Clock::now();
            work(count);
            seconds[index] = seconds_since(start);
        };
        std::vector<std::thread> others;
        for (unsigned j = 1; j < threads; ++j) others.emplace_back(run, j);
        run(0);
        for (auto& other : others) other.join();
        // The first finds cold caches and makes what is made once.
        if (i > 0) samples.push_back(bench::median(seconds) * scale / static_cast<double>(count));
    }
    return samples;
}

void add_passages(bench::Figures& figures, const Options& options) {
    constexpr std::size_t k_passages = 2'000'000;
    constexpr double k_ns = 1e9;
    const auto pass = [](std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            const gate::Passage passage(gate::Touch::submits, "cuLaunchKernel");
            asm volatile("" : : "r"(&passage) : "memory");
        }
    };
    const auto add = [&](const std::string& name, unsigned threads, double target) {
        figures.add({name, "ns", sampled(options.repeats, k_ns, threads, k_passages, pass), target, {}});
    };
    add("one passage, 1 thread", 1, 8);
    // With more threads than cores some wait for a core, not for the gate.
    const auto threads = std::clamp(std::thread::hardware_concurrency(), 1U, 16U);
    add(fmt::format("one passage, {} threads at once", threads), threads, 12);
}

/// Launches of a kernel that finds nothing to do.
void launch(const Calls& calls, CUfunction kernel, std::size_t count) {
    void* no_blocks = nullptr;
    std::uint64_t none = 0;
    driver::FingerprintKey key{};
    void* arguments[] = {static_cast<void*>(&no_blocks), static_cast<void*>(&no_blocks), &none, &key};
    for (std::size_t i = 0; i < count; ++i)
        calls.launch(kernel, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr);
    calls.synchronize(nullptr);
}

void allocate_and_free(const Calls& calls, std::size_t bytes, bool in_stream, std::size_t count) {
    std::vector<CUdeviceptr> addresses(16);
    for (std::size_t done = 0; done < count; done += addresses.size()) {
        for (auto& address : addresses)
            in_stream ? calls.allocate_async(&address, bytes, nullptr) : calls.allocate(&address, bytes);
        for (const auto address : addresses)
            in_stream ? calls.free_async(address, nullptr) : calls.free(address);
    }
    if (in_stream) calls.synchronize(nullptr);
}

void add_pair(bench::Figures& figures, const std::string& name, unsigned repeats, std::size_t count,
              std::optional<double> most_ratio, const std::function<void(const Calls&, std::size_t)>& work) {
    constexpr double k_us = 1e6;
    const auto measure = [&](SymbolLookup look_up) {
        const Calls calls(look_up);
        return sampled(repeats, k_us, 1, count, [&](std::size_t of) { work(calls, of); });
    };
    const auto without = bench::median(measure(&find_symbol));
    const auto with = measure(&::dlsym);
    figures.add(
        {name, "us", with, most_ratio ? std::optional(*most_ratio * without) : std::nullopt, without});
}

Result<bench::Figures> run(const Options& options) {
    auto api = GPU_SLEEP_TRY(driver::Api::load());
    if (Calls(&::dlsym).launch == Calls(&find_symbol).launch)
        return make_error(ErrorCode::invalid_argument, "nothing is intercepted here: run it under gpu-run");
    // The program's own cuInit, which starts the agent.
    void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
    reinterpret_cast<decltype(&::cuInit)>(::dlsym(driver, "cuInit"))(0);
    // The agent sees this hold, and not that of `context`: it must not take the context for ended.
    CUcontext held = nullptr;
    reinterpret_cast<decltype(&::cuDevicePrimaryCtxRetain)>(::dlsym(driver, "cuDevicePrimaryCtxRetain"))(
        &held, 0);
    auto context = GPU_SLEEP_TRY(driver::PrimaryContext::retain(api, 0));
    const driver::CurrentContext current(api, context.get());
    CUmodule module = nullptr;
    CUfunction kernel = nullptr;
    GPU_SLEEP_DRIVER_TRY(api, cuModuleLoadData, "cannot load a kernel", &module, driver::kernel_image());
    GPU_SLEEP_DRIVER_TRY(api, cuModuleGetFunction, "cannot find a kernel", &kernel, module,
                         driver::k_fingerprint_kernel);

    char name[256] = {};
    GPU_SLEEP_DRIVER_TRY(api, cuDeviceGetName, "cannot ask for the device's name", name, sizeof(name) - 1, 0);
    bench::Figures figures("interception_bench",
                           fmt::format("{}; the limit is of the same call without interception", name));
    add_passages(figures, options);
    constexpr std::size_t k_launches = 500; // fewer than the driver queues
    add_pair(figures, "an empty launch", options.repeats, k_launches, {},
             [&](const Calls& calls, std::size_t count) { launch(calls, kernel, count); });
    constexpr std::size_t k_allocations = 64;
    constexpr double k_most = 1.2;
    const auto add = [&](const char* what, Bytes bytes, bool in_stream) {
        add_pair(figures, what + format_bytes(bytes), options.repeats, k_allocations, k_most,
                 [&](const Calls& calls, std::size_t count) {
                     allocate_and_free(calls, bytes, in_stream, count);
                 });
    };
    for (const auto bytes : {Bytes{4096}, 256 * k_kib, 2 * k_mib, 20 * k_mib, 256 * k_mib})
        add("allocate and free ", bytes, false);
    for (const auto bytes : {Bytes{4096}, k_mib, 20 * k_mib}) add("the same in stream order, ", bytes, true);
    GPU_SLEEP_DRIVER_TRY(api, cuModuleUnload, "cannot unload a kernel", module);
    return figures;
}

} // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app{"Measures what interception costs a program that is awake. Run it under gpu-run."};
    app.add_option("--repeats", options.repeats, "measurements of a kind")->check(CLI::Range(1, 1000));
    app.add_option("--json", options.json, "file for the figures");
    app.add_flag("--check", options.check, "end with 1 when a target is missed");
    CLI11_PARSE(app, argc, argv);
    const auto figures = run(options);
    if (figures) return bench::finish(*figures, options.json, options.check);
    std::fprintf(stderr, "interception_bench: %s\n", figures.error().message.c_str());
    return EXIT_FAILURE;
}
