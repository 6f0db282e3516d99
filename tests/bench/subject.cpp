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

/// Adds up the devices' `field` in a report.
Bytes sum_of(const Json& report, const char* field) {
    Bytes sum = 0;
    for (const auto& device : report.at("devices")) sum += device.value(field, Bytes{0});
    return sum;
}

} // namespace

Subject::Subject(std::vector<std::string> environment)
    : server_({{test::command_file("sleep_bench"), "--serve"},
               std::move(environment),
               true,
               k_for_tens_of_gigabytes}) {}

std::string Subject::ask(const std::string& line) {
    server_.send(line);
    auto answer = server_.read_line();
    if (answer.starts_with("error: "))
        throw test::ProcessFailure("the server that holds the memory: " + answer);
    return answer;
}

std::vector<double> Subject::ask_numbers(const std::string& line) {
    std::istringstream words(ask(line));
    std::vector<double> numbers;
    for (double number = 0; words >> number;) numbers.push_back(number);
    return numbers;
}

void Subject::hold(const Memory& memory) {
    ask(fmt::format("hold {} {}", memory.kind, listed(memory.sizes)));
}

Bytes Subject::free_gpu_memory() {
    return static_cast<Bytes>(ask_numbers("memory").at(0)); // a whole number below 2^53
}

Device Subject::device() {
    const auto answer = ask("device");
    const auto space = answer.find(' ');
    return {answer.starts_with("simulated"), answer.substr(space + 1)};
}

Link Subject::link() {
    const auto answer = ask_numbers("link");
    return {answer.at(0), answer.at(1)};
}

double Subject::launch(unsigned count) {
    return ask_numbers(fmt::format("launch {}", count)).at(0);
}

Timed Subject::sleep(std::vector<std::string> arguments) const {
    return run("gpu-sleep", std::move(arguments));
}

Timed Subject::wake() const {
    return run("gpu-wake", {});
}

std::string Subject::run_command(std::string_view command, std::vector<std::string> arguments,
                                 double& seconds) const {
    arguments.insert(arguments.begin(), {test::command_file(command), std::to_string(pid()), "--json"});
    auto done = test::run({std::move(arguments), {}, true, k_for_tens_of_gigabytes});
    if (done.status != 0)
        throw test::ProcessFailure(
            fmt::format("{} ended with {}: {}{}", command, done.status, done.out, done.err));
    seconds = done.seconds;
    return std::move(done.out);
}

Timed Subject::run(std::string_view command, std::vector<std::string> arguments) const {
    Timed timed;
    const auto document = Json::parse(run_command(command, std::move(arguments), timed.seconds));
    const auto& report = document.at("/processes/0/report"_json_pointer);
    timed.inside_seconds = report.at("times").at("total_seconds");
    timed.kept = sum_of(report, "kept_bytes");
    timed.stored = sum_of(report, "stored_bytes");
    timed.host_bytes = report.at("host_bytes");
    for (const auto& device : report.at("devices"))
        for (const auto& [step, seconds] : device.at("steps").items())
            timed.steps[step.substr(0, step.rfind("_seconds"))] += seconds.get<double>();
    return timed;
}

Bytes Subject::reported(std::string_view field) const {
    double seconds = 0;
    return Json::parse(run_command("gpu-ps", {}, seconds))
        .at(Json::json_pointer(fmt::format("/processes/0/report/{}", field)));
}

Bytes Subject::resident_bytes() const {
    std::ifstream file(fmt::format("/proc/{}/smaps_rollup", pid()));
    std::map<std::string, Bytes> found;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string name;
        Bytes kib = 0;
        if (words >> name >> kib) found[name] = kib * k_kib;
    }
    return found.at("Rss:") - found["Pss_Shmem:"];
}

std::string listed(const Sizes& sizes) {
    return fmt::format("{}", fmt::join(sizes, " "));
}

} // namespace gpu_sleep::bench
