// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of gpu-ps --watch: its width, its order, and what it says of a process.

#include "cli/show/render.hpp"

#include "support/catch.hpp"
#include "support/hostile_text.hpp"
#include "support/printed.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::cli;
using namespace gpu_sleep::control;

namespace {

Process process_of(pid_t pid) {
    Process process;
    process.pid = pid;
    process.command = "python3 serve.py";
    return process;
}

model::Report report_of(const std::string& name, Bytes resident, Bytes host, std::optional<double> idle) {
    auto report = test::sample_status();
    report.name = name;
    report.tags.resize(1);
    report.tags[0].resident = resident;
    report.host_bytes = host;
    report.idle_seconds = idle;
    return report;
}

std::vector<control::Outcome> sample() {
    const auto silent = make_error(ErrorCode::timed_out, "no answer");
    return {{process_of(4), silent},
            {process_of(3), report_of("b", 2 * k_gib, k_gib, 7500)},
            {process_of(2), report_of("a", k_gib, 2 * k_gib, 45)},
            {process_of(1), report_of("c", 0, 0, std::nullopt)}};
}

std::string pids_by(std::string_view word) {
    auto outcomes = sample();
    sort(outcomes, word);
    std::string pids;
    for (const auto& outcome : outcomes) pids += std::to_string(outcome.process.pid);
    return pids;
}

} // namespace

TEST_CASE("Live table: orders; who does not answer comes last", "[live]") {
    CHECK(pids_by("gpu") == "3214");
    CHECK(pids_by("host") == "2314");
    CHECK(pids_by("idle") == "3214");
    CHECK(pids_by("pid") == "1234");
    CHECK(pids_by("name") == "2314");
}

TEST_CASE("Live table: a line for each process, and the sums", "[live]") {
    auto outcomes = sample();
    std::get<model::Report>(outcomes[2].answer).wakes_waiting.resize(1);
    std::get<model::Report>(outcomes[3].answer).state = model::State::asleep;
    const test::Printed shown(render_live(outcomes, 80));
    REQUIRE(shown.rows.size() == 4);
    CHECK(shown.sentences.at(0) == "4 processes, 1 asleep, 1 without an answer; GPU 3.00 GiB, host 3.00 GiB");
    CHECK(shown.rows[0].at("STATE") == "no answer");
    std::get<model::Report>(outcomes[1].answer).state = model::State::paused;
    const test::Printed paused(render_live(outcomes, 80));
    CHECK(paused.rows[1].at("STATE") == "paused");
    CHECK(paused.sentences.at(0) == shown.sentences.at(0)); // it does not sleep
    outcomes[0].answer = make_error(ErrorCode::stopped, "it is stopped");
    CHECK(test::Printed(render_live(outcomes, 80)).rows[0].at("STATE") == "stopped");
    outcomes[2].answer = report_of("a", k_gib, 0, 45);
    std::get<model::Report>(outcomes[2].answer).inhibited = true;
    CHECK(test::Printed(render_live(outcomes, 80)).rows[2].at("STATE") == "inhibited");
    outcomes[2].answer = report_of("a", k_gib, 0, 45);
    outcomes[2].by_driver = true;
    CHECK(test::Printed(render_live(outcomes, 80)).rows[2].at("STATE") == "no agent");
    std::get<model::Report>(outcomes[3].answer).lost = true;
    const test::Printed lost(render_live(outcomes, 80));
    CHECK(lost.rows[3].at("STATE") == "lost");
    CHECK_THAT(lost.sentences.at(0), test::mentions(", 0 asleep, 1 lost"));
    CHECK(shown.rows[1].at("IDLE") == "2h05m");
    CHECK(shown.rows[1].at("GPU") == "2.00 GiB");
    CHECK(shown.rows[1].at("HOST") == "1.00 GiB");
    CHECK(shown.rows[2].at("STATE") == "waits");
    CHECK(shown.rows[2].at("IDLE") == "45s");
    CHECK(shown.rows[3].at("IDLE") == "-");
    CHECK(shown.rows[3].at("STATE") == "asleep");
    CHECK_FALSE(shown.rows[3].contains("FILES"));
}

TEST_CASE("Live table: GPUs with their holders, the reason of who waits, and the chosen process", "[live]") {
    auto outcomes = sample();
    auto& waiting = std::get<model::Report>(outcomes[2].answer).wakes_waiting;
    waiting.resize(1);
    waiting[0].reason =
        "waking needs 600.0 MiB on GPU 0, and 408.0 MiB of 1.00 GiB are free; 13773 (a) has 600.0 MiB; 7 too";
    const driver::Gpu full{
        0, "GPU-0", "H200", 80 * k_gib, 20 * k_gib, false, {{911, 19 * k_gib}, {3, 40 * k_gib}}};
    const driver::Gpu empty{1, "GPU-1", "H200", 80 * k_gib, 80 * k_gib, false, {}};
    const auto text = render_live(outcomes, 80, {full, empty}, 2);
    const test::Printed shown(text);
    CHECK(shown.sentences.at(1) == "GPU 0: 60.0 GiB used, 20.0 GiB free; b 40.0 GiB, 911 19.0 GiB");
    CHECK(shown.sentences.at(2) == "GPU 1: 0 B used, 80.0 GiB free");
    const auto why = shown.sentences.end() - 3;
    CHECK(why[0].starts_with("waits: waking needs 600.0 MiB on GPU 0, and 408.0"));
    CHECK(why[1] == "13773 (a) has 600.0 MiB");
    CHECK(why[2] == "7 too");
    CHECK(shown.rows[2].at("PID") == ">2");
    CHECK(shown.rows[1].at("PID") == "3");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) CHECK(width_of(line) <= 80);
    CHECK(choose(outcomes, {}, 'j') == 4); // the first
    CHECK(choose(outcomes, 4, 'k') == 4);
    CHECK(choose(outcomes, 4, 'j') == 3);
    CHECK(choose(outcomes, 1, 'j') == 1);
    CHECK(choose(outcomes, 3, 'k') == 4);
    CHECK(choose(outcomes, 77, 'k') == 4); // it has ended
    CHECK_FALSE(choose({}, {}, 'j'));
}

TEST_CASE("Live table: rows above the chosen one go where a screen is too low for it", "[live]") {
    std::vector<control::Outcome> outcomes;
    for (pid_t pid = 1; pid <= 20; ++pid) outcomes.push_back({process_of(pid), report_of("a", k_gib, 0, 0)});
    const auto shown = [&](pid_t chosen, std::size_t room) {
        std::string pids;
        for (const auto& row : test::Printed(scrolled(render_live(outcomes, 80, {}, chosen), room)).rows)
            pids += row.at("PID") + ' ';
        return pids;
    };
    CHECK(shown(3, 10).starts_with("1 2 >3 4 "));
    // The sum, an empty line, the titles, five rows, and two lines for keys.
    CHECK(shown(5, 10).starts_with("1 2 3 4 >5 6 "));
    CHECK(shown(6, 10).starts_with("2 3 4 5 >6 7 "));
    CHECK(shown(20, 10) == "16 17 18 19 >20 ");
    CHECK(shown(20, 1) == ">20 ");
    const auto whole = render_live(outcomes, 80);
    CHECK(scrolled(whole, 1) == whole); // nothing is chosen
}

TEST_CASE("Live table: what is retained is said apart of what keeps contents", "[live]") {
    auto outcomes = sample();
    CHECK_THAT(render_live(outcomes, 120), !test::mentions("retained"));
    std::get<model::Report>(outcomes[1].answer).retained_bytes = 4 * k_gib;
    const test::Printed shown(render_live(outcomes, 120));
    CHECK_THAT(shown.sentences.front(),
               test::mentions("host 7.00 GiB (4.00 GiB retained for the next sleep)"));
    CHECK(shown.rows[1].at("HOST") == "5.00 GiB");
}

TEST_CASE("Live table: what tells processes of one name apart is shown, and cut after the names", "[live]") {
    auto outcomes = sample();
    for (auto& outcome : outcomes) outcome.process.origin.unit = "jupyter-of-a-user.service";
    CHECK_FALSE(test::Printed(render_live(outcomes, 80)).rows[0].contains("FROM"));
    for (const std::size_t i : {1U, 2U}) {
        std::get<model::Report>(outcomes[i].answer).name = "python3 -m ipykernel_launcher";
        outcomes[i].process.origin.notebook = i == 1 ? "work/a.ipynb" : "work/b.ipynb";
    }
    const test::Printed shown(render_live(outcomes, 200));
    CHECK_FALSE(shown.rows[0].contains("FROM"));
    CHECK(shown.rows[1].at("FROM") == "a.ipynb");
    CHECK(shown.rows[1].at("NAME") == "python3 -m ipykernel_launcher");
    const auto narrow = render_live(outcomes, 70);
    std::istringstream lines(narrow);
    for (std::string line; std::getline(lines, line);) CHECK(width_of(line) <= 70);
    CHECK(test::Printed(narrow).rows[2].at("FROM") == "b.ipynb");
    outcomes[1].process.origin.notebook = outcomes[2].process.origin.notebook = test::hostile_text();
    CHECK(test::is_safe(render_live(outcomes, 80)));
}

TEST_CASE("Live table: names are cut so that it fits in eighty columns", "[live]") {
    const std::string wide = GENERATE(std::string(64, 'x'),
                                      std::string("\xE6\xA8\xA1\xE5\x9E\x8B"
                                                  "\xE6\xA8\xA1\xE5\x9E\x8B"
                                                  "\xE6\xA8\xA1\xE5\x9E\x8B"
                                                  "\xE6\xA8\xA1\xE5\x9E\x8B"
                                                  "\xE6\xA8\xA1\xE5\x9E\x8B"
                                                  "\xE6\xA8\xA1\xE5\x9E\x8B"
                                                  "\xE6\xA8\xA1\xE5\x9E\x8B"),
                                      test::hostile_text());
    auto outcomes = sample();
    auto& report = std::get<model::Report>(outcomes[1].answer);
    report.name = wide;
    report.file_bytes = 1023 * k_mib;
    report.idle_seconds = 86'400.0 * 999;
    outcomes[0].process.pid = 4'194'304;
    const auto text = render_live(outcomes, 80);
    INFO(text);
    CHECK(test::is_safe(text));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) CHECK(width_of(line) <= 80);
}
