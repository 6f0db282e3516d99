// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents that stay in host memory past a wake: nothing is lost over many cycles, and neither that they stay
// nor that they are given back slows the program.

#include "support/gpu.hpp"

#include <dlfcn.h>

#include <cstdio>

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

bool is_simulated() {
    return ::dlsym(RTLD_DEFAULT, "sim_clear") != nullptr;
}

void sleep_once() {
    check(gpu_sleep_sleep(1, nullptr, 30'000));
}

void wake_once() {
    check(gpu_sleep_wake(nullptr, 0));
}

/// Launches a millisecond, each waited for, over some time.
class Launches {
public:
    Launches() { check(cuMemAlloc(&word_, sizeof(std::uint32_t))); }
    Launches(const Launches&) = delete;
    Launches& operator=(const Launches&) = delete;
    ~Launches() { cuMemFree(word_); }

    [[nodiscard]] double rate(Milliseconds time) const {
        const auto start = Clock::now();
        unsigned count = 0;
        for (; Clock::now() < start + time; ++count) {
            check(cuMemsetD32Async(word_, count, 1, nullptr));
            check(cuStreamSynchronize(nullptr));
        }
        return count / std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    }

private:
    CUdeviceptr word_ = 0;
};

} // namespace

TEST_CASE("Retained: cycles of random changes, with a budget that changes, lose nothing", "[retained]") {
    const char* const wanted = std::getenv("GPU_SLEEP_CYCLES");
    const int cycles = wanted ? std::atoi(wanted) : 100;
    const Gpu gpu(0);
    std::mt19937 random(11);
    const auto below = [&](std::size_t end) {
        return std::uniform_int_distribution<std::size_t>(0, end - 1)(random);
    };
    struct Range {
        TaggedMemory memory;
        Words contents;
    };
    std::vector<std::unique_ptr<Range>> ranges;
    for (unsigned i = 0; i < 6; ++i) {
        const Bytes bytes = (i + 1) * 2 * k_mib;
        ranges.emplace_back(
            new Range{TaggedMemory(i % 2 == 0 ? "weights" : "kv_cache", bytes), random_words(bytes, i)});
        ranges.back()->memory.write(ranges.back()->contents);
    }
    for (int cycle = 0; cycle < cycles; ++cycle) {
        INFO("cycle " << cycle);
        for (auto changes = below(4); changes > 0; --changes) {
            auto& range = *ranges[below(ranges.size())];
            if (below(6) == 0)
                std::fill(range.contents.begin(), range.contents.end(), static_cast<std::uint32_t>(below(2)));
            else
                range.contents[below(range.contents.size())] += 1;
            range.memory.write(range.contents);
        }
        if (below(3) == 0) check(gpu_sleep_set_retained(below(44) * k_mib));
        sleep_once();
        if (below(6) == 0) check(gpu_sleep_set_retained(below(44) * k_mib));
        wake_once();
        for (const auto& range : ranges) REQUIRE(range->memory.read() == range->contents);
    }
    check(gpu_sleep_set_retained(UINT64_MAX));
}

TEST_CASE("Retained: launches are as fast while contents are retained and given back", "[retained]") {
    constexpr Milliseconds k_window{400};
    constexpr int k_rounds = 3;
    const Gpu gpu(0);
    const Bytes bytes = is_simulated() ? 64 * k_mib : 2 * k_gib;
    const TaggedMemory weights("weights", bytes);
    for (Bytes at = 0; at < bytes; at += 64 * k_mib)
        check(cuMemsetD32(weights.address() + at, 0x1234'5678, 64 * k_mib / sizeof(std::uint32_t)));
    const Launches launches;
    static_cast<void>(launches.rate(k_window)); // warms up
    std::vector<double> retained;
    std::vector<double> given_back;
    for (int i = 0; i < k_rounds; ++i) {
        check(gpu_sleep_set_retained(0));
        pause_for(Milliseconds(is_simulated() ? 100 : 6'000)); // until all is given back
        const auto before = launches.rate(k_window);
        check(gpu_sleep_set_retained(UINT64_MAX));
        sleep_once();
        wake_once();
        retained.push_back(launches.rate(k_window) / before);
        check(gpu_sleep_set_retained(0));
        given_back.push_back(launches.rate(k_window) / before);
    }
    std::sort(retained.begin(), retained.end());
    std::sort(given_back.begin(), given_back.end());
    std::printf("launches, times those without: retained %.3f, while given back %.3f (medians of %d)\n",
                retained[k_rounds / 2], given_back[k_rounds / 2], k_rounds);
    check(gpu_sleep_set_retained(UINT64_MAX));
    if (is_simulated()) return; // its times say nothing
    // The best round: another program on the host slows single ones by a tenth, what costs time shows in all.
    CHECK(retained.back() > 0.98);
    CHECK(given_back.back() > 0.97);
}
