// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Usage: intercepted_program_runtime stress THREADS CYCLES SECONDS
//
// THREADS threads allocate, launch, capture, copy and free, and check every byte, while the main thread puts
// the process to sleep and wakes it CYCLES times, wholly and by tag. It finds the agent as programs do that
// may run without: by dlsym. Prints "cycles C iterations I launches L captures G illegal A broken B" and ends
// with 0; with 1 and a line on standard error at the first thing that is wrong; by SIGALRM after SECONDS.

#include "../intercepted_work.hpp"
#include "../routines.hpp"
#include "gpu_sleep/gpu_sleep.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <random>
#include <thread>

namespace gpu_sleep::test {
namespace {

constexpr std::array k_tags = {"even", "odd"};
constexpr std::array k_kinds = {"plain", "async", "pool", "vmm2", "plain", "async"};
constexpr std::uint64_t k_max_words = std::uint64_t{1} << 17; // 1 MiB

/// The agent's functions.
struct Agent {
    decltype(&::gpu_sleep_push_tag) push_tag;
    decltype(&::gpu_sleep_pop_tag) pop_tag;
    decltype(&::gpu_sleep_sleep) sleep;
    decltype(&::gpu_sleep_wake) wake;
    decltype(&::gpu_sleep_last_error) last_error;
};

const Agent& agent() {
    static const Agent found = {
        reinterpret_cast<decltype(&::gpu_sleep_push_tag)>(find_or_die(RTLD_DEFAULT, "gpu_sleep_push_tag")),
        reinterpret_cast<decltype(&::gpu_sleep_pop_tag)>(find_or_die(RTLD_DEFAULT, "gpu_sleep_pop_tag")),
        reinterpret_cast<decltype(&::gpu_sleep_sleep)>(find_or_die(RTLD_DEFAULT, "gpu_sleep_sleep")),
        reinterpret_cast<decltype(&::gpu_sleep_wake)>(find_or_die(RTLD_DEFAULT, "gpu_sleep_wake")),
        reinterpret_cast<decltype(&::gpu_sleep_last_error)>(
            find_or_die(RTLD_DEFAULT, "gpu_sleep_last_error")),
    };
    return found;
}

/// What all threads share.
struct Totals {
    std::atomic<bool> stops{false};
    std::atomic<std::uint64_t> iterations{0}, launches{0}, captures{0};
};
Totals g_totals;

/// Ends the program: what comes after the first wrong thing says nothing any more.
[[noreturn]] void fail(const std::string& what) {
    static std::mutex only_once;
    only_once.lock();
    std::fprintf(stderr, "%s\n", what.c_str());
    std::_Exit(EXIT_FAILURE);
}

/// One thread's memory and work. Everything in it has the thread's tag.
class Worker {
public:
    Worker(CUcontext context, unsigned number)
        : context_(context), tag_(k_tags[number % k_tags.size()]), random_(number) {}

    Result<void> run() {
        GPU_SLEEP_TRY(prepare());
        while (!g_totals.stops) {
            GPU_SLEEP_TRY(iterate());
            ++g_totals.iterations;
        }
        return {};
    }

private:
    Result<void> prepare() {
        GPU_SLEEP_TEST_CALL(cuCtxSetCurrent, context_);
        GPU_SLEEP_TEST_CALL(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
        GPU_SLEEP_TEST_CALL(cuModuleLoadData, &module_, "any image has every kernel");
        auto made = make("plain", sizeof(std::uint64_t));
        if (!made) return made.error();
        counter_ = *std::move(made);
        GPU_SLEEP_TEST_CALL(cuMemsetD8Async, counter_.address, 0, counter_.bytes, stream_);
        made = make("vmm2", k_max_words * sizeof(std::uint64_t));
        if (!made) return made.error();
        kept_ = *std::move(made);
        return write(kept_, kept_seed_ = random_());
    }

    Result<Memory> make(const char* kind, std::size_t bytes) const {
        agent().push_tag(tag_);
        auto made = allocate(kind, bytes, stream_);
        agent().pop_tag();
        return made;
    }

    /// Allocates, writes, passes it on by a graph now and then, checks, frees.
    Result<void> iterate() {
        const auto words = 1 + random_() % k_max_words;
        auto made = GPU_SLEEP_TRY(make(k_kinds[random_() % k_kinds.size()], words * sizeof(std::uint64_t)));
        const auto seed = random_();
        GPU_SLEEP_TRY(write(made, seed));
        GPU_SLEEP_TRY(count());
        if (random_() % 4 == 0) {
            auto copy = GPU_SLEEP_TRY(make("async", made.bytes));
            GPU_SLEEP_TRY(copy_by_graph(made, copy));
            GPU_SLEEP_TRY(check(copy, seed));
            GPU_SLEEP_TRY(release(copy, stream_));
        }
        GPU_SLEEP_TRY(check(made, seed));
        GPU_SLEEP_TRY(release(made, stream_));
        if (random_() % 8 == 0) GPU_SLEEP_TRY(check(kept_, kept_seed_));
        return {};
    }

    Result<void> write(const Memory& memory, std::uint64_t seed) {
        return launch(module_, k_noise_kernel, stream_, memory.address,
                      std::uint64_t{memory.bytes / sizeof(std::uint64_t)}, seed);
    }

    /// Adds one on the device, and looks whether it has been added each time before.
    Result<void> count() {
        GPU_SLEEP_TRY(launch(module_, "sim_add", stream_, counter_.address, std::uint64_t{1}, 1U));
        ++expected_;
        ++g_totals.launches;
        std::uint64_t counted = 0;
        GPU_SLEEP_TEST_CALL(cuMemcpyDtoHAsync, &counted, counter_.address, sizeof counted, stream_);
        GPU_SLEEP_TEST_CALL(cuStreamSynchronize, stream_);
        if (counted == expected_) return {};
        return make_error(ErrorCode::internal, "{} launches counted {}", expected_, counted);
    }

    Result<void> copy_by_graph(const Memory& from, const Memory& to) {
        CUgraph graph = nullptr;
        CUgraphExec exec = nullptr;
        GPU_SLEEP_TEST_CALL(cuStreamBeginCapture, stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        GPU_SLEEP_TEST_CALL(cuMemcpyDtoDAsync, to.address, from.address, from.bytes, stream_);
        GPU_SLEEP_TRY(launch(module_, "sim_add", stream_, counter_.address, std::uint64_t{1}, 1U));
        GPU_SLEEP_TEST_CALL(cuStreamEndCapture, stream_, &graph);
        GPU_SLEEP_TEST_CALL(cuGraphInstantiate, &exec, graph, 0);
        GPU_SLEEP_TEST_CALL(cuGraphDestroy, graph);
        GPU_SLEEP_TEST_CALL(cuGraphLaunch, exec, stream_);
        GPU_SLEEP_TEST_CALL(cuStreamSynchronize, stream_);
        GPU_SLEEP_TEST_CALL(cuGraphExecDestroy, exec);
        ++expected_;
        ++g_totals.captures;
        return {};
    }

    Result<void> check(const Memory& memory, std::uint64_t seed) {
        host_.resize(memory.bytes / sizeof(std::uint64_t));
        GPU_SLEEP_TEST_CALL(cuMemcpyDtoHAsync, host_.data(), memory.address, memory.bytes, stream_);
        GPU_SLEEP_TEST_CALL(cuStreamSynchronize, stream_);
        for (std::uint64_t i = 0; i < host_.size(); ++i)
            if (host_[i] != noise_at(seed, i))
                return make_error(ErrorCode::internal, "{} memory of {} bytes lost word {}", memory.kind,
                                  memory.bytes, i);
        return {};
    }

    CUcontext context_;
    const char* tag_;
    std::minstd_rand random_;
    CUstream stream_ = nullptr;
    CUmodule module_ = nullptr;
    Memory counter_, kept_;
    std::uint64_t kept_seed_ = 0, expected_ = 0;
    std::vector<std::uint64_t> host_;
};

void wait_for_iterations(std::uint64_t more) {
    const auto goal = g_totals.iterations + more;
    while (g_totals.iterations < goal) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

void sleep_and_wake(int cycles) {
    constexpr std::uint32_t k_limit_ms = 30'000;
    constexpr std::array<const char*, 4> k_which = {nullptr, "even", "odd", "even,odd"};
    std::minstd_rand random(99);
    for (int cycle = 0; cycle < cycles; ++cycle) {
        const char* tags = k_which[static_cast<std::size_t>(cycle) % k_which.size()];
        if (agent().sleep(1, tags, k_limit_ms) != GPU_SLEEP_OK)
            fail(fmt::format("sleep {} of '{}': {}", cycle, tags ? tags : "all", agent().last_error()));
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
        if (agent().wake(cycle % 8 < 4 ? nullptr : tags, 0) != GPU_SLEEP_OK)
            fail(fmt::format("wake {}: {}", cycle, agent().last_error()));
        // Otherwise nothing but sleeping would happen.
        if (cycle % 2 == 0) wait_for_iterations(1 + random() % 4);
    }
}

Result<CUcontext> make_context() {
    CUcontext context = nullptr;
    GPU_SLEEP_TEST_CALL(cuInit, 0);
    GPU_SLEEP_TEST_CALL(cuDevicePrimaryCtxRetain, &context, 0);
    return context;
}

int run(unsigned thread_count, int cycles) {
    const auto context = make_context();
    if (!context) fail(context.error().message);
    register_noise_kernel();
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < thread_count; ++i)
        threads.emplace_back([=] {
            const auto done = Worker(*context, i).run();
            if (!done) fail(fmt::format("thread {}: {}", i, done.error().message));
        });
    wait_for_iterations(thread_count); // both tags are known then
    sleep_and_wake(cycles);
    g_totals.stops = true;
    for (auto& thread : threads) thread.join();
    const auto faults = GPU_SLEEP_TEST_CONTROL(sim_fault_counts)();
    fmt::print("cycles {} iterations {} launches {} captures {} illegal {} broken {}\n", cycles,
               g_totals.iterations.load(), g_totals.launches.load(), g_totals.captures.load(),
               faults.illegal_accesses, faults.broken_captures);
    return EXIT_SUCCESS;
}

const AddRoutines g_routines({{"stress", [](const auto& words) {
                                   if (words.size() != 3) return 2;
                                   ::alarm(static_cast<unsigned>(std::stoul(words[2])));
                                   return run(static_cast<unsigned>(std::stoul(words[0])),
                                              std::stoi(words[1]));
                               }}});

} // namespace
} // namespace gpu_sleep::test
