// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Questions to a server, commands with their reports, and the proc file system.

#include "bench/subject.hpp"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>

namespace gpu_sleep::bench {
namespace {

using Json = nlohmann::json;

/// For an answer: holding that much takes a while.
constexpr Milliseconds k_for_tens_of_gigabytes{300'000};

/// The two numbers of an answer.
template <class Number, class Pair>
Result<Pair> read_pair(const Result<std::string>& answer) {
    if (!answer) return answer.error();
    std::istringstream words(*answer);
    Number first{};
    Number second{};
    words >> first >> second;
    return Pair{first, second};
}

/// What `act` gives; a process that did not do its part is an error.
template <class Act>
auto attempt(Act&& act) -> Result<decltype(act())> {
    try {
        return act();
    } catch (const test::ProcessFailure& failure) {
        return make_error(ErrorCode::io_failed, "{}", failure.what());
    }
}

/// Adds up the devices' `field` in a report.
Bytes sum_of(const Json& report, const char* field) {
    Bytes sum = 0;
    for (const auto& device : report.at("devices")) sum += device.value(field, Bytes{0});
    return sum;
}

/// The value of `field`, which the file gives in kB; nothing if it has none.
std::optional<Bytes> read_kib(const std::string& path, std::string_view field) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string name;
        Bytes kib = 0;
        if (words >> name >> kib && name == field) return kib * k_kib;
    }
    return std::nullopt;
}

} // namespace

Result<Subject> Subject::start() {
    return attempt([] {
        return Subject(test::Process(
            {{test::command_file("sleep_bench"), "--serve"}, {}, true, k_for_tens_of_gigabytes}));
    });
}

Result<std::string> Subject::ask(const std::string& line) {
    auto answer = attempt([&] {
        server_.send(line);
        return server_.read_line();
    });
    if (answer && answer->starts_with("error: "))
        return make_error(ErrorCode::driver_failed, "the server that holds the memory: {}", *answer);
    return answer;
}

Result<void> Subject::hold(std::string_view tag, int retention, const std::vector<Bytes>& sizes) {
    const auto answer = ask(fmt::format("hold {} {} {}", tag, retention, fmt::join(sizes, " ")));
    if (!answer) return answer.error();
    return {};
}

Result<void> Subject::hold_zeros(std::string_view tag, const std::vector<Bytes>& sizes) {
    const auto answer = ask(fmt::format("hold-zeros {} {}", tag, fmt::join(sizes, " ")));
    if (!answer) return answer.error();
    return {};
}

Result<void> Subject::change(Bytes nth) {
    const auto answer = ask(fmt::format("change {}", nth));
    if (!answer) return answer.error();
    return {};
}

Result<void> Subject::hold_plainly(const std::vector<Bytes>& sizes) {
    const auto answer = ask(fmt::format("hold-plainly {}", fmt::join(sizes, " ")));
    if (!answer) return answer.error();
    return {};
}

Result<GpuMemory> Subject::gpu_memory() {
    return read_pair<Bytes, GpuMemory>(ask("memory"));
}

Result<std::string> Subject::device() {
    return ask("device");
}

Result<Link> Subject::link() {
    return read_pair<double, Link>(ask("link"));
}

Result<Timed> Subject::sleep(std::vector<std::string> arguments) {
    return run("gpu-sleep", std::move(arguments));
}

Result<Timed> Subject::wake(std::vector<std::string> arguments) {
    return run("gpu-wake", std::move(arguments));
}

Result<Timed> Subject::run(std::string_view command, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {test::command_file(command), std::to_string(server_.pid()), "--json"});
    const auto done = attempt([&] {
        return test::run({std::move(arguments), {}, true, k_for_tens_of_gigabytes});
    });
    if (!done) return done.error();
    const auto document = Json::parse(done->out, nullptr, false);
    if (done->status != 0 || document.is_discarded())
        return make_error(ErrorCode::internal, "{} ended with {}: {}", command, done->status,
                          done->out + done->err);
    const auto& report = document.at("/processes/0/report"_json_pointer);
    Timed timed;
    timed.seconds = done->seconds;
    timed.inside_seconds = report.at("times").at("total_seconds");
    timed.kept = sum_of(report, "kept_bytes");
    timed.copied = sum_of(report, "copied_bytes");
    timed.host_bytes = report.at("host_bytes");
    return timed;
}

Result<Bytes> Subject::resident_bytes() const {
    const auto process = fmt::format("/proc/{}", server_.pid());
    const auto rollup = process + "/smaps_rollup";
    if (const auto all = read_kib(rollup, "Rss:")) return *all - read_kib(rollup, "Pss_Shmem:").value_or(0);
    if (const auto all = read_kib(process + "/status", "VmRSS:")) return *all;
    return make_error(ErrorCode::io_failed, "cannot tell how much memory process {} has", server_.pid());
}

} // namespace gpu_sleep::bench
