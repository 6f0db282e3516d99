// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How long a server takes to fall asleep and to wake, from the start of the command to its exit, and what
// that costs in memory. Every time also stands against what the link allows for the bytes kept, measured in
// the same run. sleep_cases.hpp has the cases.

#include "bench/figures.hpp"
#include "bench/sleep_cases.hpp"
#include "bench/subject.hpp"
#include "store/host_memory.hpp"

#include <CLI/CLI.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace gpu_sleep;

struct Options {
    bench::Settings settings{.scale = 0}; ///< scale 0: whole on a real GPU, a hundredth on the simulated one
    std::vector<std::string> cases;
    std::string json;
    bool check = false, serve = false;
    Bytes touch = 0;
};

bool is_wanted(const Options& options, std::string_view name) {
    return options.cases.empty() ||
           std::any_of(options.cases.begin(), options.cases.end(),
                       [&](const std::string& part) { return name.find(part) != std::string_view::npos; });
}

/// Takes host memory, on all processors. The end of the process gives it back.
int touch_host(Bytes bytes) {
    void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return EXIT_FAILURE;
    ::madvise(mapped, bytes, MADV_HUGEPAGE);
    auto* const memory = static_cast<volatile std::byte*>(mapped);
    constexpr Bytes k_page = 4 * k_kib;
    const Bytes count = std::max(1U, std::thread::hardware_concurrency());
    std::vector<std::thread> threads;
    for (Bytes i = 0; i < count; ++i)
        threads.emplace_back([=] {
            for (Bytes at = bytes / count * i; at < bytes / count * (i + 1); at += k_page)
                memory[at] = std::byte{1};
        });
    for (auto& thread : threads) thread.join();
    return EXIT_SUCCESS;
}

/// Has host memory touched in a process that ends: a virtual machine may have to grow for it, which is not
/// what is measured. Returns how much that was.
Bytes warm_host(const Options& options, double scale) {
    Bytes most = 0;
    for (const auto& each : bench::cases())
        if (is_wanted(options, each.name)) most = std::max(most, each.host);
    most = static_cast<Bytes>(static_cast<double>(most) * scale);
    most = std::min(most, store::host_headroom().bytes / 8 * 7);
    if (most == 0) return 0;
    constexpr Milliseconds k_patience{300'000};
    const auto done = test::run(
        {{test::command_file("sleep_bench"), "--touch", std::to_string(most)}, {}, true, k_patience});
    return done.status == EXIT_SUCCESS ? most : 0;
}

bench::Bench begin(const Options& options) {
    bench::Subject subject; // its context would count as memory in use later
    const auto device = subject.device();
    auto settings = options.settings;
    if (settings.scale == 0) settings.scale = device.is_simulated ? 0.01 : 1;
    settings.is_judged = !device.is_simulated && settings.scale == 1;
    return {settings, subject.link(), device,
            fmt::format("{} driver, {}, sizes times {}", device.is_simulated ? "simulated" : "real",
                        device.name, settings.scale)};
}

int run(const Options& options) {
    auto bench = begin(options);
    auto& figures = bench.figures();
    figures.note(fmt::format("{} of host memory were touched and given back beforehand",
                             format_bytes(warm_host(options, bench.settings().scale))));
    figures.add({"link to host", "GB/s", {bench.link().to_host / 1e9}, {}, {}});
    figures.add({"link to device", "GB/s", {bench.link().to_device / 1e9}, {}, {}});
    for (const auto& each : bench::cases()) {
        if (!is_wanted(options, each.name)) continue;
        const auto start = Clock::now();
        each.run(bench);
        fmt::print(stderr, "{}: {:.1f} s\n", each.name, seconds_since(start));
        // What is done stays, whatever becomes of the rest.
        if (const auto written = options.json.empty() ? Result<void>() : figures.write_json(options.json);
            !written)
            throw std::runtime_error(written.error().message);
    }
    return bench::finish(figures, options.json, options.check);
}

} // namespace

int main(int argc, char** argv) {
    Options options;
    auto& settings = options.settings;
    CLI::App app{"Measures sleeping and waking, from the start of the command to its exit."};
    app.add_option("--cases", options.cases, "only those whose name contains one of these")->delimiter(',');
    app.add_option("--scale", settings.scale, "times all sizes; no target counts then")
        ->check(CLI::PositiveNumber);
    app.add_option("--repeats", settings.repeats, "operations of a kind in one process")
        ->check(CLI::Range(1, 1000));
    app.add_option("--first-sleeps", settings.first_sleeps, "processes that sleep for the first time")
        ->check(CLI::Range(1, 1000));
    app.add_option("--pause", settings.pause_ms, "before each operation, in milliseconds");
    app.add_option("--json", options.json, "file for the figures");
    app.add_flag("--check", options.check, "fail when a target is missed");
    app.add_flag("--serve", options.serve, "be the process that is put to sleep; of no use by hand");
    app.add_option("--touch", options.touch, "take so many bytes of host memory, and end; likewise");
    CLI11_PARSE(app, argc, argv);
    if (options.touch != 0) return touch_host(options.touch);
    // The simulated driver's pattern in fresh memory needs a second view of it, which would count as the
    // process's.
    ::setenv("GPU_SLEEP_SIM_POISON", "0", 0);
    try {
        return options.serve ? bench::serve() : run(options);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "sleep_bench: %s\n", error.what());
        return EXIT_FAILURE;
    }
}
