// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How long steps take.

#include "model/report.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::model;
using namespace std::chrono_literals;

TEST_CASE("Steps: each has its place among the times, and a word of its own", "[steps]") {
    std::set<std::string> words;
    for (std::size_t i = 0; i < k_steps.size(); ++i) {
        CHECK(static_cast<std::size_t>(k_steps[i]) == i);
        words.insert(std::string(to_string(k_steps[i])));
    }
    CHECK(words.size() == k_steps.size());
    CHECK_FALSE(words.contains("unknown"));
}

TEST_CASE("Steps: the time of all threads is added up, for each step alone", "[steps]") {
    StepClock clock;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            for (int j = 0; j < 1000; ++j) clock.add(Step::pin, 1ms);
        });
    for (auto& thread : threads) thread.join();
    clock.add(Step::release, 250ms);
    auto expected = StepTimes{};
    expected[static_cast<std::size_t>(Step::pin)] = 4;
    expected[static_cast<std::size_t>(Step::release)] = 0.25;
    CHECK(clock.times() == expected);
}

TEST_CASE("Steps: a scope is counted when it ends, and none without a clock", "[steps]") {
    StepClock clock;
    const auto start = Clock::now();
    {
        const StepClock::Timed timed(&clock, Step::copy);
        const StepClock::Timed nobody(nullptr, Step::copy);
        std::this_thread::sleep_for(2ms);
        CHECK(clock.times() == StepTimes{});
    }
    const auto most = std::chrono::duration<double>(Clock::now() - start).count();
    const auto spent = clock.times()[static_cast<std::size_t>(Step::copy)];
    CHECK(spent >= 0.002);
    CHECK(spent <= most);
}
