// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What people read of idleness, of consent, and of why a process sleeps or not.

#include "cli/show/render.hpp"

#include "support/catch.hpp"
#include "support/printed.hpp"
#include "support/sample_reports.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::cli;
using namespace gpu_sleep::control;

TEST_CASE("Render: the listing says how long what is awake has been idle", "[render]") {
    const auto state = [](model::State how, std::optional<double> idle) {
        auto report = test::sample_status();
        report.state = how;
        report.idle_seconds = idle;
        return test::Printed(render_listing({{test::sample_process(), report}})).rows.at(0).at("STATE");
    };
    CHECK(state(model::State::awake, 843) == "awake 1 h 0 min, idle 14 min 3 s");
    CHECK(state(model::State::partial, 843) == "partly asleep 1 h 0 min, idle 14 min 3 s");
    CHECK(state(model::State::awake, 59) == "awake 1 h 0 min");
    CHECK(state(model::State::awake, std::nullopt) == "awake 1 h 0 min");
    CHECK(state(model::State::asleep, 7200) == "asleep 1 h 0 min");
}

TEST_CASE("Render: whether sleeps are inhibited is a line", "[render]") {
    auto report = test::sample_status();
    CHECK(render_inhibition(test::sample_process(), report) == "4242 llama: sleeps are not inhibited\n");
    report.inhibited = true;
    CHECK(render_inhibition(test::sample_process(), report) == "4242 llama: sleeps are inhibited\n");
    report.inhibited_seconds = 14'340;
    CHECK(render_inhibition(test::sample_process(), report) ==
          "4242 llama: sleeps are inhibited for another 3 h 59 min\n");
}

TEST_CASE("Render: why a process sleeps or not, and how long it would take to wake", "[render]") {
    auto report = test::sample_status();
    report.idle_seconds = 843;
    report.devices = {{0, "NVIDIA H200", 15 * k_gib, 12 * k_gib, 3 * k_gib, 0, 0, 0}};
    const auto lines = [&] {
        return test::Printed(render_reasons(test::sample_process(), report)).sentences;
    };
    CHECK(lines() ==
          std::vector<std::string>{"4242 llama: awake 1 h 0 min", "it last worked 14 min 3 s ago",
                                   "a sleep would free 15.0 GiB", "nothing prevents it",
                                   "time to wake: unknown, because it has not woken from a sleep yet"});
    report.idle_seconds = 0;
    refuse(report, "it is not idle");
    report.notes.emplace_back("needs host memory");
    report.woken_bytes = 6 * k_gib;
    report.woken_seconds = 0.25;
    CHECK(lines() == std::vector<std::string>{
                         "4242 llama: awake 1 h 0 min", "it worked or woke within the last 4 s",
                         "a sleep would free 15.0 GiB", "prevented by: it is not idle", "needs host memory",
                         "waking would take 0.50 s for 12.0 GiB, as fast as last time (6.00 GiB in 0.25 s)"});
    report.tags.at(0).in_place = 9 * k_gib; // which takes next to no time
    CHECK(lines().back() ==
          "waking would take 0.12 s for 3.00 GiB, as fast as last time (6.00 GiB in 0.25 s)");
    report.idle_seconds.reset();
    CHECK(lines()[1] == "it is not known when it last worked");
    report.inhibited = true; // comes first, whatever else is in the way
    CHECK(lines()[1] == "prevented by: sleeps are inhibited");
    CHECK(lines()[4] == "prevented by: it is not idle");
}
