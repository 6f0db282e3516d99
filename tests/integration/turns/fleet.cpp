// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking servers.

#include "fleet.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdlib>

namespace gpu_sleep::test {

Server::Server(const TurnOptions& options, std::vector<std::string> environment, unsigned number)
    : options_(options), environment_(std::move(environment)), number_(number) {}

std::vector<std::string> Server::words() const {
    std::vector<std::string> words{command_file("gpu-run"), "--name", "turns", "--on-touch", "wake"};
    if (options_.by_requests)
        words.insert(words.end(),
                     {"--make-room", "--min-awake", fmt::format("{}ms", options_.min_awake.count())});
    words.insert(words.end(), {"--", command_file("intercepted_program_linked")});
    return words;
}

bool Server::start() {
    const auto seed = options_.seed * 1'000'003 + number_ * 1'009 + ++starts_;
    {
        const std::lock_guard lock(mutex_);
        killed_ = false;
        process_.reset();
        process_.emplace(Launch{words(), environment_});
        pid_ = process_->pid();
    }
    std::string answer;
    try {
        answer = process_->read_line();
        process_->send(fmt::format("serve {} {} {}", options_.ranges, options_.range_bytes, seed));
        answer = process_->read_line();
        if (answer == "ok ") return true;
    } catch (const ProcessFailure&) {
        if (!killed_) throw;
    }
    const std::lock_guard lock(mutex_);
    pid_ = 0;
    process_.reset(); // it holds what it found
    if (killed_ || answer.find("CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos) return false;
    throw ProcessFailure(fmt::format("server {} says: {}", number_, answer));
}

std::optional<double> Server::ask() {
    const auto start = Clock::now();
    last_asked_ = start;
    busy_ = true;
    std::string answer;
    try {
        process_->send("work");
        answer = process_->read_line();
    } catch (const ProcessFailure&) {
        busy_ = false;
        if (killed_) return std::nullopt;
        throw;
    }
    busy_ = false;
    if (answer != "ok ") throw ProcessFailure(fmt::format("server {} says: {}", number_, answer));
    return std::chrono::duration<double>(Clock::now() - start).count();
}

void Server::end() {
    process_->close_input();
    std::optional<int> status;
    const auto has_ended = [&] {
        const std::lock_guard lock(mutex_);
        status = process_->wait_for(Milliseconds(0));
        return status.has_value();
    };
    static_cast<void>(becomes_true(has_ended));
    const std::lock_guard lock(mutex_);
    if (killed_) return;
    if (status != EXIT_SUCCESS)
        throw ProcessFailure(
            fmt::format("server {} ended with {}: {}", number_, status.value_or(-1), process_->errors()));
    pid_ = 0;
}

void Server::kill() {
    const std::lock_guard lock(mutex_);
    // Its process is waited for under the mutex: the pid is its own.
    if (!process_ || process_->pid() == 0) return;
    killed_ = true;
    process_->signal(SIGKILL);
}

void Findings::waited(double seconds) {
    const std::lock_guard lock(mutex_);
    waits_.push_back(seconds);
}

void Findings::failed(const std::string& what) {
    const std::lock_guard lock(mutex_);
    failures_.push_back(what);
}

bool Findings::has_failed() const {
    const std::lock_guard lock(mutex_);
    return !failures_.empty();
}

std::vector<double> Findings::waits() const {
    const std::lock_guard lock(mutex_);
    auto sorted = waits_;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
}

std::vector<std::string> Findings::failures() const {
    const std::lock_guard lock(mutex_);
    return failures_;
}

std::vector<std::string> states_of(const std::deque<Server>& servers) {
    std::vector<std::string> states(servers.size());
    const auto document =
        nlohmann::json::parse(run({{command_file("gpu-ps"), "--json"}}).out, nullptr, false);
    if (document.is_discarded()) return states;
    for (const auto& process : document.value("processes", nlohmann::json::array()))
        for (const auto& server : servers)
            if (process.value("pid", 0) == server.pid())
                states[server.number()] = process.value("state", std::string());
    return states;
}

} // namespace gpu_sleep::test
