// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Talking to the host program.

#include "support/host.hpp"

#include "base/process.hpp"

#include <fmt/format.h>

#include <exception>

namespace gpu_sleep::test {

Arguments with(Arguments some, const Arguments& more) {
    some.insert(some.end(), more.begin(), more.end());
    return some;
}

Launch host_launch(Arguments environment, Arguments prefix) {
    prefix.push_back(command_file("integration_host"));
    return {std::move(prefix), std::move(environment)};
}

void await_request(const Process& command) {
    await_open(command, "socket:");
    pause_for(Milliseconds(50));
}

void await_open(const Process& command, std::string_view part) {
    namespace fs = std::filesystem;
    const auto descriptors = fmt::format("/proc/{}/fd", command.pid());
    const auto has_opened = [&] {
        std::error_code ignored; // it is starting, or closes one at this moment
        for (fs::directory_iterator each(descriptors, ignored), end; each != end; each.increment(ignored))
            if (fs::read_symlink(each->path(), ignored).native().find(part) != std::string::npos) return true;
        return false;
    };
    CHECK(becomes_true(has_opened));
}

Host::Host(Arguments environment, Arguments prefix)
    : Host(host_launch(std::move(environment), std::move(prefix))) {}

Host::Host(const Launch& launch) : Controlled(launch) {
    REQUIRE(process_.read_line() == "ready");
}

bool Host::can_be_asked() const noexcept {
    return !is_over_ && std::uncaught_exceptions() == 0;
}

Host::~Host() {
    if (!can_be_asked()) return;
    process_.close_input();
    const int status = process_.wait_for(k_patience).value_or(-1);
    INFO("standard error of the host program: " << process_.errors());
    CHECK(status == 0);
}

std::string Host::ask(const std::string& line) {
    process_.send(line);
    return process_.read_line();
}

std::string Host::tell(const std::string& line) {
    const auto answer = ask(line);
    INFO(line << ": " << answer << "\nstandard error: " << process_.errors());
    REQUIRE(answer.substr(0, 3) == "ok ");
    return answer.substr(3);
}

void Host::check_whole() {
    CHECK(tell("check_all") == "intact");
    CHECK(tell("faults") == "0");
}

void Host::check_unharmed() {
    CHECK(state() == "awake");
    check_whole();
    sleep();
    wake_whole();
}

void Host::wake_whole() {
    wake();
    check_whole();
}

int Host::wait() {
    is_over_ = true;
    return process_.wait();
}

void Host::kill() {
    process_.signal(SIGKILL);
    CHECK(wait() == 128 + SIGKILL);
}

Process Controlled::start(const std::string& name, Arguments arguments) const {
    return Process(Launch{with({command_file(name), std::to_string(pid())}, arguments)});
}

Output Controlled::command(const std::string& name, Arguments arguments) const {
    return start(name, std::move(arguments)).finish();
}

void Controlled::sleep(Arguments arguments) const {
    REQUIRE(succeeded(command("gpu-sleep", std::move(arguments))));
}

void Controlled::wake(Arguments arguments) const {
    REQUIRE(succeeded(command("gpu-wake", std::move(arguments))));
}

void Controlled::cycle() const {
    sleep();
    wake();
}

std::string Controlled::state() const {
    return command("gpu-ps", {"--json"}).json("/processes/0/state");
}

std::string Controlled::report(const std::string& names) const {
    return command("gpu-ps", {"--json"}).json(names, "/processes/0/report/");
}

bool Controlled::waits_at_the_gate() const {
    return becomes_true([&] { return report("gate/waiting_threads") == "1"; });
}

bool Controlled::moves_contents() const {
    return command("gpu-ps", {"--json"}).out.find("contents are being moved") != std::string::npos;
}

Output ended(Output output, int status) {
    INFO(output.out << output.err);
    REQUIRE(output.status == status);
    return output;
}

bool succeeded(const Output& output) {
    if (output.status != 0) UNSCOPED_INFO(output.out << output.err);
    return output.status == 0;
}

Arguments captured(Arguments more) {
    more.emplace_back("GPU_SLEEP_CAPTURE=1");
    return more;
}

void become_idle(const Host& host, double seconds) {
    REQUIRE(becomes_true([&] { return std::atof(host.report("idle_seconds").c_str()) > seconds; }));
}

Arguments environment_for_others(Arguments variables) {
    if (!is_sanitized()) return variables;
    const char* options = std::getenv("ASAN_OPTIONS");
    variables.push_back(
        fmt::format("ASAN_OPTIONS={}:verify_asan_link_order=0:detect_leaks=0", options ? options : ""));
    return variables;
}

Launch gpu_run(Arguments arguments, Arguments environment) {
    return {with({command_file("gpu-run")}, arguments), environment_for_others(std::move(environment))};
}

std::string socket_file(pid_t process) {
    const auto start_time = start_time_of(process);
    REQUIRE(start_time);
    return agent_directory(::geteuid()) + "/" + agent_socket_name(process, *start_time);
}

} // namespace gpu_sleep::test
