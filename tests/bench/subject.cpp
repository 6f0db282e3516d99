// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Questions to a server, commands with their reports, and the proc file system.

#include "bench/subject.hpp"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
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

Result<Subject> Subject::start(std::vector<std::string> environment) {
    return attempt([&] {
        return Subject(test::Process({{test::command_file("sleep_bench"), "--serve"},
                                      std::move(environment),
                                      true,
                                      k_for_tens_of_gigabytes}));
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

Result<void> Subject::tell(const std::string& line) {
    const auto answer = ask(line);
    if (!answer) return answer.error();
    return {};
}

Result<double> Subject::ask_number(const std::string& line) {
    const auto answer = ask(line);
    if (!answer) return answer.error();
    return std::strtod(answer->c_str(), nullptr);
}

Result<void> Subject::hold(std::string_view tag, int retention, const std::vector<Bytes>& sizes, int device) {
    return tell(fmt::format("hold {} {} {} {}", device, tag, retention, fmt::join(sizes, " ")));
}

Result<void> Subject::hold_zeros(std::string_view tag, const std::vector<Bytes>& sizes) {
    return tell(fmt::format("hold-zeros {} {}", tag, fmt::join(sizes, " ")));
}

Result<void> Subject::change(Bytes nth) {
    return tell(fmt::format("change {}", nth));
}

Result<void> Subject::hold_plainly(const std::vector<Bytes>& sizes) {
    return tell(fmt::format("hold-plainly {}", fmt::join(sizes, " ")));
}

Result<void> Subject::begin_tensors(bool retains_host_memory) {
    return tell(retains_host_memory ? "per-tensor retained" : "per-tensor given_back");
}

Result<void> Subject::hold_tensors(bool kept, const std::vector<Bytes>& sizes) {
    return tell(fmt::format("hold-tensors {} {}", kept ? "kept" : "dropped", fmt::join(sizes, " ")));
}

Result<double> Subject::sleep_tensors() {
    return ask_number("sleep-tensors");
}

Result<double> Subject::wake_tensors() {
    return ask_number("wake-tensors");
}

Result<void> Subject::check_tensors() {
    return tell("check-tensors");
}

Result<double> Subject::launch(unsigned count) {
    return ask_number(fmt::format("launch {}", count));
}

Result<double> Subject::read(unsigned count) {
    return ask_number(fmt::format("read {}", count));
}

Result<GpuMemory> Subject::gpu_memory() {
    return read_pair<Bytes, GpuMemory>(ask("memory"));
}

Result<Devices> Subject::devices() {
    const auto answer = ask("device");
    if (!answer) return answer.error();
    std::istringstream words(*answer);
    std::string kind;
    Devices devices;
    words >> kind >> devices.count >> std::ws;
    devices.is_simulated = kind == "simulated";
    std::getline(words, devices.name);
    return devices;
}

Result<Link> Subject::link() {
    return read_pair<double, Link>(ask("link"));
}

Result<Timed> Subject::sleep(std::vector<std::string> arguments) const {
    return run("gpu-sleep", std::move(arguments));
}

Result<Timed> Subject::wake(std::vector<std::string> arguments) const {
    return run("gpu-wake", std::move(arguments));
}

Result<test::Output> Subject::run_command(std::string_view command,
                                          std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(),
                     {test::command_file(command), std::to_string(server_.pid()), "--json"});
    auto done = attempt([&] { return test::run({std::move(arguments), {}, true, k_for_tens_of_gigabytes}); });
    if (done && done->status != 0)
        return make_error(ErrorCode::internal, "{} ended with {}: {}", command, done->status,
                          done->out + done->err);
    return done;
}

Result<Timed> Subject::run(std::string_view command, std::vector<std::string> arguments) const {
    const auto done = run_command(command, std::move(arguments));
    if (!done) return done.error();
    const auto document = Json::parse(done->out);
    const auto& report = document.at("/processes/0/report"_json_pointer);
    Timed timed;
    timed.seconds = done->seconds;
    timed.inside_seconds = report.at("times").at("total_seconds");
    timed.kept = sum_of(report, "kept_bytes");
    timed.copied = sum_of(report, "copied_bytes");
    timed.stored = sum_of(report, "stored_bytes");
    timed.host_bytes = report.at("host_bytes");
    for (const auto& device : report.at("devices"))
        for (const auto& [step, seconds] : device.at("steps").items())
            timed.steps[step.substr(0, step.rfind("_seconds"))] += seconds.get<double>();
    return timed;
}

Result<Bytes> Subject::reported(std::string_view field) const {
    const auto done = run_command("gpu-ps", {});
    if (!done) return done.error();
    return Json::parse(done->out)
        .at(Json::json_pointer(fmt::format("/processes/0/report/{}", field)))
        .get<Bytes>();
}

Result<Bytes> Subject::host_bytes() const {
    return reported("host_bytes");
}

Result<Bytes> Subject::retained_bytes() const {
    return reported("retained_bytes");
}

Result<Bytes> Subject::resident_bytes() const {
    const auto process = fmt::format("/proc/{}", server_.pid());
    const auto rollup = process + "/smaps_rollup";
    if (const auto all = read_kib(rollup, "Rss:")) return *all - read_kib(rollup, "Pss_Shmem:").value_or(0);
    if (const auto all = read_kib(process + "/status", "VmRSS:")) return *all;
    return make_error(ErrorCode::io_failed, "cannot tell how much memory process {} has", server_.pid());
}

} // namespace gpu_sleep::bench
