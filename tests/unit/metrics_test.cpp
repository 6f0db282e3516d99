// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reports as metrics: which of them are added up, and how texts of others are made safe.

#include "cli/show/render.hpp"

#include "support/catch.hpp"
#include "support/hostile_text.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::cli;
using namespace gpu_sleep::control;

namespace {

constexpr std::int64_t k_now = 1'800'000'000;

Process server(pid_t pid, const std::string& command = "/usr/bin/python3 serve.py --key secret") {
    Process process;
    process.pid = pid;
    process.command = command;
    process.program = {"python3", "serve.py"};
    return process;
}

/// A report of a program of this name, whose weights and cache are on the GPUs GPU-a and GPU-b.
model::Report named(std::string name, model::Report report = test::sample_status()) {
    report.name = std::move(name);
    report.devices = {{0, "NVIDIA H200"}, {1, "NVIDIA H200"}};
    report.devices[0].uuid = "GPU-a";
    report.devices[1].uuid = "GPU-b";
    return report;
}

/// Whether there is this line, once.
bool has_line(const std::string& text, const std::string& line) {
    std::istringstream lines(text);
    int count = 0;
    for (std::string each; std::getline(lines, each);) count += each == line;
    return count == 1;
}

std::string render(const std::vector<control::Outcome>& outcomes) {
    return render_metrics(outcomes, {}, k_now);
}

} // namespace

TEST_CASE("Metrics: bytes by GPU, tag and place", "[metrics]") {
    auto report = named("llama", test::sample_sleep_in_files());
    report.residual = {{"managed", 1, 4096, 1, ""}};
    const auto text = render({{server(1), report}});
    INFO(text);
    const std::string weights = R"({user="root",name="llama",gpu="GPU-a",tag="weights",place=")";
    CHECK(has_line(text, "gpu_sleep_memory_bytes" + weights + "gpu\"} 0"));
    CHECK(has_line(text, "gpu_sleep_memory_bytes" + weights + "host\"} 10737418240"));
    CHECK(has_line(text, "gpu_sleep_memory_bytes" + weights + "file\"} 5368709120"));
    CHECK(has_line(
        text, R"(gpu_sleep_dropped_bytes{user="root",name="llama",gpu="GPU-b",tag="kv_cache"} 25769803776)"));
    CHECK(has_line(text,
                   R"(gpu_sleep_residual_bytes{user="root",name="llama",gpu="GPU-b",kind="managed"} 4096)"));
    CHECK(has_line(text, R"(gpu_sleep_host_memory_held_bytes{user="root",name="llama"} 10737418240)"));
    CHECK(has_line(text, R"(gpu_sleep_file_size_bytes{user="root",name="llama"} 3221225472)"));
    CHECK(has_line(text, R"(gpu_sleep_processes{user="root",name="llama",engine="agent",state="asleep"} 1)"));
}

TEST_CASE("Metrics: processes with the same labels are added up; the last work is the latest", "[metrics]") {
    auto first = named("llama", test::sample_intercepted_sleep());
    auto second = first;
    second.idle_seconds = 60;
    const auto text = render({{server(1), first}, {server(2), second}, {server(3), named("other")}});
    INFO(text);
    const std::string who = R"(user="root",name="llama")";
    CHECK(has_line(text, "gpu_sleep_processes{" + who + R"(,engine="agent",state="asleep"} 2)"));
    CHECK(has_line(text, "gpu_sleep_inhibited{" + who + "} 2"));
    CHECK(has_line(text, "gpu_sleep_last_work_timestamp_seconds{" + who + "} 1799999940"));
    CHECK_THAT(text, !test::mentions("gpu_sleep_last_work_timestamp_seconds{user=\"root\",name=\"other\"}"));
    CHECK(has_line(text, "gpu_sleep_waiting_wakes{" + who + "} 4"));
    CHECK(has_line(text, "gpu_sleep_waiting_wake_seconds{" + who + "} 12.5"));
}

TEST_CASE("Metrics: counters are those of one process, and missing while only an old report is known",
          "[metrics]") {
    auto first = named("llama", test::sample_intercepted_sleep());
    auto second = first;
    second.transitions[0].done_seconds = 1.5;
    control::Outcome stopped{server(3), first};
    stopped.stopped_report_seconds = 60;
    const auto text = render({{server(1), first}, {server(2), second}, stopped});
    INFO(text);
    for (const auto* const counter : {"touches_total", "transitions_total", "asleep_byte_seconds_total",
                                      "transition_duration_seconds_count"}) {
        const auto its = fmt::format("gpu_sleep_{}{{user=\"root\",name=\"llama\",pid=", counter);
        CHECK_THAT(text, test::mentions(its + R"("1")") && test::mentions(its + R"("2")") &&
                             !test::mentions(its + R"("3")"));
    }
    const std::string who = R"(user="root",name="llama",pid="2")";
    CHECK(has_line(text, "gpu_sleep_touches_total{" + who + "} 17"));
    CHECK(has_line(text, "gpu_sleep_transitions_total{" + who + R"(,operation="sleep",result="done"} 4)"));
    CHECK(
        has_line(text, "gpu_sleep_transitions_total{" + who + R"(,operation="sleep",result="timed_out"} 2)"));
    const auto bucket = [&](const std::string& le, int count) {
        return has_line(text,
                        fmt::format("gpu_sleep_transition_duration_seconds_bucket{{{},operation=\"sleep\","
                                    "le=\"{}\"}} {}",
                                    who, le, count));
    };
    CHECK(bucket("0.01", 0));
    CHECK(bucket("0.025", 3));
    CHECK(bucket("0.05", 3));
    CHECK(bucket("0.1", 4));
    CHECK(bucket("60", 4));
    CHECK(bucket("+Inf", 4));
    CHECK(has_line(text, "gpu_sleep_transition_duration_seconds_sum{" + who + R"(,operation="sleep"} 1.5)"));
    CHECK(has_line(text, "gpu_sleep_transition_duration_seconds_count{" + who + R"(,operation="sleep"} 4)"));
    CHECK(has_line(text, "gpu_sleep_transition_duration_seconds_bucket{" + who +
                             R"(,operation="wake",le="60"} 0)"));
}

TEST_CASE("Metrics: each process says where it belongs, and what its sleep has given back", "[metrics]") {
    auto kernel = server(7);
    kernel.origin = {"work/a.ipynb", "1f0c", "471", "0123456789ab", "0123456789ab", "0a1b-77"};
    auto report = named("llama");
    report.asleep_byte_seconds = 3 * k_gib;
    const auto text = render({{kernel, report}, {server(8), report}});
    INFO(text);
    const std::string info = R"(gpu_sleep_process_info{user="root",name="llama",pid=")";
    CHECK(has_line(text, info + R"(7",job="471",unit="",container="0123456789ab",pod="0a1b-77",)" +
                             R"(notebook="work/a.ipynb"} 1)"));
    CHECK(has_line(text, info + R"(8",job="",unit="",container="",pod="",notebook=""} 1)"));
    for (const auto* const pid : {"7", "8"})
        CHECK(has_line(text, R"(gpu_sleep_asleep_byte_seconds_total{user="root",name="llama",pid=")" +
                                 std::string(pid) + R"("} 3221225472)"));
}

TEST_CASE("Metrics: hostile words of where a process belongs stay within their labels", "[metrics]") {
    auto its = server(7);
    its.origin = {"a\"} 1\nevil{", {}, "47\\\"1", "u\x1b.service", {}, {}};
    const auto text = render({{its, named("llama")}});
    INFO(text);
    CHECK(has_line(text, R"(gpu_sleep_process_info{user="root",name="llama",pid="7",job="47\\\"1",)"
                         R"(unit="u?.service",container="",pod="",notebook="a\"} 1?evil{"} 1)"));
}

TEST_CASE("Metrics: who has no name is called by program and script, never by other arguments", "[metrics]") {
    const auto text = render({{server(1), named("")}});
    CHECK_THAT(text, test::mentions("name=\"python3 serve.py\""));
    CHECK_THAT(text, !test::mentions("secret"));
    auto titled = server(1, "trainer: secret");
    titled.program = program_name({"trainer: secret"});
    CHECK_THAT(render({{titled, named("")}}), test::mentions("name=\"trainer:\""));
    auto bare = server(1, "[kernel]");
    bare.program = {};
    CHECK_THAT(render({{bare, named("")}}), test::mentions("name=\"kernel\""));
}

TEST_CASE("Metrics: who does not answer is counted, and who has no agent is apart", "[metrics]") {
    const auto silent = make_error(ErrorCode::timed_out, "no answer");
    model::Report checkpointed;
    checkpointed.state = model::State::asleep;
    checkpointed.host_bytes = 5;
    model::Report lost;
    lost.lost = true;
    const auto text = render({{server(1), silent},
                              {server(2), silent},
                              {server(3), model::Failure{silent, model::State::awake}},
                              {server(4), checkpointed, model::Operation::status, false, true},
                              {server(5), silent, model::Operation::status, false, true},
                              {server(6), named("awake", {}), model::Operation::status, false, true},
                              {server(7), lost},
                              {server(8), make_error(ErrorCode::stopped, "it is stopped")}});
    INFO(text);
    const std::string who = R"(user="root",name="python3 serve.py")";
    CHECK(has_line(text, "gpu_sleep_unanswered{" + who + "} 3"));
    CHECK(has_line(text, "gpu_sleep_stopped{" + who + "} 1"));
    CHECK(has_line(text, "gpu_sleep_processes{" + who + R"(,engine="driver",state="asleep"} 1)"));
    CHECK(has_line(text, "gpu_sleep_processes{" + who + R"(,engine="driver",state="unknown"} 1)"));
    CHECK(has_line(text, "gpu_sleep_processes{" + who + R"(,engine="agent",state="lost"} 1)"));
    CHECK(has_line(text, "gpu_sleep_host_memory_held_bytes{" + who + "} 5"));
    CHECK(has_line(text, R"(gpu_sleep_host_memory_held_bytes{user="root",name="awake"} 0)"));
    CHECK_THAT(text, !test::mentions("gpu_sleep_memory_bytes{"));
}

TEST_CASE("Metrics: strangers' texts stay within their labels", "[metrics]") {
    auto report = named("a\\b\"} 1\n# TYPE x counter\nx 1");
    report.tags[0].tag = test::hostile_text();
    const auto text = render({{server(1, test::hostile_text()), report}});
    CHECK(test::is_safe(text));
    CHECK(has_line(text, R"(gpu_sleep_inhibited{user="root",name="a\\b\"} 1?# TYPE x counter?x 1"} 0)"));
    CHECK_FALSE(has_line(text, "x 1"));
}

TEST_CASE("Metrics: each GPU of the machine, and the command's version", "[metrics]") {
    driver::Gpu gpu;
    gpu.uuid = "GPU-a";
    gpu.total = 3 * k_gib;
    gpu.free = k_gib;
    const auto text = render_metrics({}, {gpu}, k_now);
    CHECK(has_line(text, R"(gpu_sleep_gpu_memory_total_bytes{gpu="GPU-a"} 3221225472)"));
    CHECK(has_line(text, R"(gpu_sleep_gpu_memory_free_bytes{gpu="GPU-a"} 1073741824)"));
    CHECK(has_line(text, "gpu_sleep_build_info{version=\"" GPU_SLEEP_VERSION "\"} 1"));
}
