// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whose turn it is.

#include "server/request_queue.hpp"

#include "support/catch.hpp"

#include <cmath>

using namespace gpu_sleep;
using namespace gpu_sleep::agent::server;

namespace {

const auto k_start = Clock::now();

Clock::time_point at(int milliseconds) {
    return k_start + Milliseconds(milliseconds);
}

/// A line whose wakes fail for want of memory as long as it is short.
class Trial {
public:
    void wake(const std::string& tag, Milliseconds wait, bool is_own = false, bool makes_room = false) {
        model::WakeRequest request;
        request.make_room = makes_room;
        request.tags = {tag};
        request.timeout = Milliseconds(1'000);
        request.wait = wait;
        add({request, {}, {}, is_own ? Asker::program : Asker::command});
    }
    void sleep(const std::string& tag) {
        model::SleepRequest request;
        request.tags = {tag};
        request.timeout = Milliseconds(1'000);
        add({request, {}, {}});
    }

    /// Runs what is next at that time. Returns its tag, and "!" if it is done; "-" for none.
    std::string run(int now) {
        auto* const place = line.next(at(now));
        if (!place) return "-";
        const auto tag = tag_of(place->job());
        model::Failure why{make_error(ErrorCode::out_of_device_memory, "short of it")};
        const bool is_wake = std::holds_alternative<model::WakeRequest>(place->job().operation);
        if (is_wake && is_short && line.waits(*place, why, at(now), at(now), pause)) return tag;
        static_cast<void>(line.leave(*place, at(now)));
        return tag + "!";
    }

    /// The same at several times, one after the other, with a blank between two of them.
    std::string runs(std::initializer_list<int> times) {
        std::string all;
        for (const int now : times) all += (all.empty() ? "" : " ") + run(now);
        return all;
    }
    static std::string tag_of(const Job& job) {
        const auto* const sleep = model::sleep_in(job.operation);
        return sleep ? sleep->tags.front() : std::get<model::WakeRequest>(job.operation).tags.front();
    }

    RequestQueue line;
    bool is_short = true;
    Milliseconds pause{0};
    int now_ms = 0;

private:
    void add(Job job) {
        job.since = at(now_ms);
        line.add(std::move(job));
    }
};

} // namespace

TEST_CASE("RequestQueue: without a shortage all run in their order", "[request_queue]") {
    Trial trial;
    trial.is_short = false;
    CHECK(trial.run(0) == "-");
    CHECK(trial.line.next_time() == Clock::time_point::max());
    trial.sleep("a");
    trial.wake("b", Milliseconds(0));
    trial.wake("c", Milliseconds(500));
    CHECK(trial.line.next_time() <= at(0));
    for (const auto* expected : {"a!", "b!", "c!", "-"}) CHECK(trial.run(0) == expected);
    CHECK(trial.line.is_empty());
}

TEST_CASE("RequestQueue: a wake that makes room is known until it is gone, and in line", "[request_queue]") {
    Trial trial;
    CHECK_FALSE(trial.line.makes_room());
    trial.wake("w", Milliseconds(60));
    CHECK_FALSE(trial.line.makes_room());
    trial.wake("r", Milliseconds(60), false, true);
    CHECK(trial.line.makes_room());
    CHECK(trial.runs({0, 0}) == "w r");
    const auto waiting = trial.line.waiting(at(0), 3);
    REQUIRE(waiting.size() == 2);
    CHECK(waiting[0].place == 0);
    CHECK(waiting[1].place == 3);
    const auto late = test::need(trial.line.take_late(at(1'100), false));
    CHECK(trial.line.makes_room());
    REQUIRE(trial.line.take_late(at(1'100), false));
    CHECK_FALSE(trial.line.makes_room());
}

TEST_CASE("RequestQueue: a dear try is made less often, and once more before the end", "[request_queue]") {
    Trial trial;
    trial.pause = Milliseconds(1'000);
    trial.wake("w", Milliseconds(1'500));
    CHECK(trial.runs({0, 999, 1'000, 1'449, 1'450}) == "w - w - w");
}

TEST_CASE("RequestQueue: a wake that lacks memory is tried each 50 ms until its end", "[request_queue]") {
    Trial trial;
    trial.wake("w", Milliseconds(120));
    CHECK(trial.runs({0, 49}) == "w -");
    CHECK(trial.line.next_time() == at(50));
    CHECK(trial.run(50) == "w");
    REQUIRE(trial.line.waiting(at(60)).size() == 1);
    CHECK(std::abs(trial.line.waiting(at(60)).front().seconds - 0.06) < 1e-9);
    CHECK(trial.line.waiting(at(60)).front().reason == "short of it");
    CHECK(trial.run(100) == "w!"); // another try would be too late
    CHECK(trial.line.waiting(at(100)).empty());
    trial.wake("x", Milliseconds(0));
    CHECK(trial.run(100) == "x!"); // it may not wait
    CHECK(trial.line.is_empty());
}

TEST_CASE("RequestQueue: the time in line is off the time in which it may wait", "[request_queue]") {
    Trial trial;
    trial.wake("w", Milliseconds(200));
    trial.wake("own", Milliseconds(200), true);
    CHECK(trial.run(1'100) == "w"); // it has 1,200 in all
    CHECK(trial.run(1'100) == "own");
    CHECK(trial.run(1'160) == "w!");
    CHECK(trial.run(1'160) == "own"); // which stands in line as long as it takes
}

TEST_CASE("RequestQueue: others go past those that wait, and have them tried again", "[request_queue]") {
    Trial trial;
    trial.wake("w", Milliseconds(60'000));
    CHECK(trial.run(0) == "w");
    trial.sleep("a");
    CHECK(trial.runs({10, 10, 10}) == "a! w -"); // there may be room now
}

TEST_CASE("RequestQueue: a stream of others, and of tries, keeps nobody out", "[request_queue]") {
    Trial trial;
    for (const auto* tag : {"v", "w", "x"}) {
        trial.wake(tag, Milliseconds(60'000));
        CHECK(trial.run(0) == tag);
    }
    std::map<std::string, int> turns;
    for (int i = 0; i < 60; ++i) {
        trial.sleep("others");
        ++turns[trial.run(1)];
    }
    CHECK(turns["others!"] == 30);
    for (const auto* tag : {"v", "w", "x"}) CHECK(turns[tag] == 10);
}

TEST_CASE("RequestQueue: those that wait are tried in the order of coming, in rounds", "[request_queue]") {
    Trial trial;
    for (const auto* tag : {"v", "w", "x"}) {
        trial.wake(tag, Milliseconds(60'000));
        CHECK(trial.run(0) == tag);
    }
    for (const int now : {50, 100})
        for (const auto* tag : {"v", "w", "x"}) CHECK(trial.run(now) == tag);
    CHECK(trial.runs({149, 150}) == "- v");
    trial.is_short = false;
    CHECK(trial.runs({150, 150, 150}) == "w! x! v!"); // at once, and not after another 50 ms
    CHECK(trial.line.is_empty());
}

TEST_CASE("RequestQueue: who has waited for too long is taken out, with what it lacked", "[request_queue]") {
    Trial trial;
    trial.wake("waits", Milliseconds(500));
    CHECK(trial.run(0) == "waits");
    trial.sleep("stands");
    trial.wake("own", Milliseconds(0), true);
    CHECK_FALSE(trial.line.take_late(at(499), false));
    const auto late = test::need(trial.line.take_late(at(500), false));
    CHECK(Trial::tag_of(late.job) == "waits");
    REQUIRE(late.why);
    CHECK(late.why->error.message == "short of it");
    CHECK_FALSE(trial.line.take_late(at(999), false));
    CHECK_FALSE(trial.line.take_late(at(1'000), true)); // it is a command's
    const auto other = test::need(trial.line.take_late(at(1'000), false));
    CHECK(Trial::tag_of(other.job) == "stands");
    CHECK_FALSE(other.why);
    CHECK_FALSE(trial.line.take_late(at(1'000'000), false));
}

TEST_CASE("RequestQueue: what runs is neither given again nor taken out, and still seen", "[request_queue]") {
    Trial trial;
    trial.wake("w", Milliseconds(60'000));
    CHECK(trial.run(0) == "w");
    auto* const place = trial.line.next(at(50));
    REQUIRE(place);
    CHECK(place->has_waited());
    CHECK_FALSE(trial.line.next(at(200)));
    CHECK_FALSE(trial.line.take_late(at(1'000'000), false));
    CHECK(trial.line.waiting(at(100)).size() == 1);
    CHECK(Trial::tag_of(trial.line.leave(*place, at(200))) == "w");
    CHECK(trial.line.is_empty());
}
