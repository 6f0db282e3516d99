// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What an agent may say without end, and how soon it is given up all the same.

#include "client/answer_timeout.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::client;
using namespace std::chrono_literals;

namespace {

constexpr Clock::time_point k_begin{1h};
constexpr AnswerTimeout::Limits k_strict{30s, 5s, false, 0s};
constexpr AnswerTimeout::Limits k_free{30s, 5s, true, 0s};

model::Progress copying(Bytes done, Bytes total) {
    return {model::Progress::Phase::transfer, done, total};
}

/// Hears what `say(n)` says at the n-th second, until it is given up or a day has passed.
template <class Say>
Clock::duration heard_for(const AnswerTimeout::Limits& limits, Say&& say) {
    AnswerTimeout timeout(limits, k_begin);
    auto now = k_begin;
    for (Bytes n = 0; now < timeout.end() && now < k_begin + 24h; ++n, now += 1s) timeout.hear(say(n), now);
    return timeout.end() - k_begin;
}

} // namespace

TEST_CASE("Answer timeout: what has no figures moves nothing", "[answer_timeout]") {
    const auto limits = GENERATE(k_strict, k_free);
    using Phase = model::Progress::Phase;
    const auto phase = GENERATE(Phase::callbacks, Phase::drain, Phase::verify, Phase::waiting);
    CHECK(heard_for(limits, [=](Bytes) { return model::Progress{phase, 0, 0}; }) == 35s);
    CHECK(heard_for(limits, [=](Bytes n) { return model::Progress{phase, n * k_gib, 4000 * k_gib}; }) == 35s);
}

TEST_CASE("Answer timeout: copying takes as long as it advances, unless limited", "[answer_timeout]") {
    const auto fast = [](Bytes n) { return copying(n * k_gib / 20, 500 * k_gib); };
    CHECK(heard_for(k_strict, fast) == 35s);
    CHECK(heard_for(k_free, fast) == 10'000s + 65s); // and no longer than until all is there
    const auto slow = [](Bytes n) { return copying(n * 10 * k_mib, 500 * k_gib); };
    CHECK(heard_for(k_free, slow) == 65s); // less than a GiB a minute
}

TEST_CASE("Answer timeout: figures that nobody can have are not believed", "[answer_timeout]") {
    const auto heard = [](auto&& figures) {
        return heard_for(k_free, [&](Bytes n) {
            const auto [done, total] = figures(n);
            return copying(done, total);
        });
    };
    using Figures = std::pair<Bytes, Bytes>;
    CHECK(heard([=](Bytes n) { return Figures{n * k_gib, ~Bytes{0}}; }) == 35s);
    CHECK(heard([](Bytes n) { return Figures{(n + 2) * k_gib, k_gib}; }) == 35s);
    CHECK(heard([](Bytes) { return Figures{0, k_gib}; }) == 65s);
    CHECK(heard([](Bytes n) { return Figures{n, 4000 * k_gib}; }) == 65s);
    // Beginning anew every second, by another total or from the start, is worth some minutes at most.
    CHECK(heard([](Bytes n) { return Figures{0, k_gib + n}; }) < 5min);
    CHECK(heard([](Bytes n) { return Figures{n % 2 * k_gib, 2 * k_gib}; }) < 5min);
    CHECK(heard([](Bytes n) { return Figures{n / 60 % 2 * k_gib, 2 * k_gib}; }) < 20min);
}

TEST_CASE("Answer timeout: a total that the machine has no memory for is not believed", "[answer_timeout]") {
    auto limits = k_free;
    limits.bytes = 141 * k_gib;
    CHECK(heard_for(limits, [](Bytes n) { return copying(n * k_gib, 142 * k_gib); }) == 35s);
    CHECK(heard_for(limits, [](Bytes n) { return copying(n * k_gib, 141 * k_gib); }) == 141s + 65s);
}

TEST_CASE("Answer timeout: calls that may take minutes do not count, for a time", "[answer_timeout]") {
    constexpr auto all = AnswerTimeout::k_calls;
    const auto told = [](Bytes done, bool in_call) {
        auto progress = copying(done, k_gib);
        progress.in_call = in_call;
        return progress;
    };
    // A flush of 45 s, and of 5 min, and then an agent that says nothing new.
    for (const Bytes took : {45, 300})
        CHECK(heard_for(k_free, [=](Bytes n) { return told(k_gib, n < took); }) ==
              65s + std::chrono::seconds(took));
    CHECK(heard_for(k_free, [=](Bytes) { return told(k_gib, true); }) == 65s + all); // a dead disk
    // One call after another, for ever.
    CHECK(heard_for(k_free, [=](Bytes n) { return told(k_gib, n % 100 != 0); }) == 65s + all);
    CHECK(heard_for(k_strict, [=](Bytes) { return told(k_gib, true); }) == 35s); // its time was asked for
    AnswerTimeout withdrawn(k_free, k_begin);
    withdrawn.hear(told(k_gib, true), k_begin);
    withdrawn.forget_calls();
    CHECK(withdrawn.end() == k_begin + 65s);
    AnswerTimeout released(k_strict, k_begin);
    released.hear({model::Progress::Phase::release, 0, 0}, k_begin);
    released.hear({.phase = model::Progress::Phase::waiting, .in_call = true}, k_begin + 1s);
    CHECK(released.end() == k_begin + AnswerTimeout::k_release + all);
    released.hear({.phase = model::Progress::Phase::waiting}, k_begin + 90s);
    CHECK(released.end() == k_begin + AnswerTimeout::k_release + 89s);
}

TEST_CASE("Answer timeout: an attempt that was given up, as for a spill, counts anew", "[answer_timeout]") {
    const auto spills = [](Bytes n) {
        const auto done = n < 100 ? n * k_gib : (n - 100) * k_gib / 10;
        return copying(std::min(done, 200 * k_gib), 200 * k_gib);
    };
    CHECK(heard_for(k_free, spills) == 100s + 2'000s + 65s);
}

TEST_CASE("Answer timeout: behind the point of no return there is a limit of its own", "[answer_timeout]") {
    const model::Progress release{model::Progress::Phase::release, 0, 0};
    AnswerTimeout timeout({1s, 5s, false, 30s}, k_begin);
    CHECK_FALSE(timeout.is_past_return());
    CHECK(timeout.end_if_stopped() == k_begin + AnswerTimeout::k_unheard_if_stopped);
    timeout.hear({model::Progress::Phase::drain, 0, 0}, k_begin);
    CHECK(timeout.end_if_stopped() == k_begin + 2s);
    timeout.hear(release, k_begin + 1s);
    CHECK(timeout.is_past_return());
    CHECK(timeout.end() == k_begin + 1s + AnswerTimeout::k_release + 30s);
    CHECK(timeout.end_if_stopped() == k_begin + 1s + AnswerTimeout::k_release_if_stopped);
    timeout.hear(release, k_begin + 40s); // once
    timeout.hear(copying(k_gib, k_gib), k_begin + 41s);
    CHECK(timeout.end() == k_begin + 1s + AnswerTimeout::k_release + 30s);
}

TEST_CASE("Answer timeout: the driver's call for a deep sleep has a limit of its own", "[answer_timeout]") {
    const model::Progress deep{model::Progress::Phase::deep, 0, 0};
    AnswerTimeout timeout({1s, 5s, false, 0s}, k_begin);
    timeout.hear({model::Progress::Phase::release, 0, 0}, k_begin);
    timeout.hear(deep, k_begin + 10s);
    timeout.hold(); // until the call has its turn
    CHECK(timeout.end() == Clock::time_point::max());
    timeout.start_call(k_begin + 100s);
    timeout.hear(deep, k_begin + 300s);
    CHECK(timeout.end() == k_begin + 101s + AnswerTimeout::k_checkpoint);
    CHECK(timeout.end_if_stopped() == k_begin + 300s + AnswerTimeout::k_release_if_stopped);
    timeout.end_call(k_begin + 301s);
    timeout.hear(deep, k_begin + 302s);
    CHECK(timeout.end() == k_begin + 301s + AnswerTimeout::k_release);
}

TEST_CASE("Answer timeout: who waits for the command and goes on has a limit again", "[answer_timeout]") {
    AnswerTimeout timeout({1s, 5s, false, 0s}, k_begin);
    timeout.hold();
    timeout.hear({model::Progress::Phase::release, 0, 0}, k_begin + 100s);
    CHECK(timeout.end() == k_begin + 100s + AnswerTimeout::k_release);
}

TEST_CASE("Answer timeout: nothing heard behind the point of no return moves the end", "[answer_timeout]") {
    const model::Progress release{model::Progress::Phase::release, 0, 0};
    AnswerTimeout timeout({1s, 5s, true, 30s}, k_begin);
    timeout.hear(release, k_begin + 1s);
    CHECK(timeout.is_past_return());
    timeout.hear(release, k_begin + 10s);
    timeout.hear(copying(k_gib, k_gib), k_begin + 11s);
    CHECK(timeout.end() == k_begin + 1s + AnswerTimeout::k_release + 30s);
}
