// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From what a person typed to connections.

#include "cli/targets.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>

namespace gpu_sleep::cli {
namespace {

constexpr Milliseconds k_name_patience{2'000}; ///< for each process to say its name

/// Connects to those of `processes` that have an agent and may be asked.
std::vector<Target> connect_to_those_with_agents(Finder& finder, std::vector<Process> processes) {
    std::vector<Target> targets;
    for (auto& process : processes)
        if (auto socket = finder.connect(process))
            targets.push_back({std::move(process), *std::move(socket)});
    return targets;
}

Result<std::vector<Target>> find_by_pid(Finder& finder, pid_t pid) {
    auto process = finder.proc().read(pid);
    if (!process) return std::move(process).error();
    auto socket = finder.connect(*process);
    if (socket) {
        std::vector<Target> targets;
        targets.push_back({*std::move(process), *std::move(socket)});
        return targets;
    }
    if (socket.error().code != ErrorCode::no_agent) return std::move(socket).error();
    auto targets = connect_to_those_with_agents(finder, descendants_of(pid, finder.proc().list()));
    if (targets.empty()) return std::move(socket).error();
    return targets;
}

Result<std::vector<Target>> find_by_name(Finder& finder, std::string_view name) {
    std::vector<Process> named;
    for (auto& outcome : ask_status(find_all(finder), k_name_patience)) {
        const auto* report = std::get_if<model::Report>(&outcome.answer);
        if (report && report->name == name) named.push_back(std::move(outcome.process));
    }
    auto targets = connect_to_those_with_agents(finder, std::move(named));
    if (targets.empty()) return make_error(ErrorCode::no_process, "there is no process named '{}'", name);
    return targets;
}

bool is_number(std::string_view text) {
    return !text.empty() &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

} // namespace

Result<std::vector<Target>> find_targets(Finder& finder, std::string_view text) {
    if (text.empty())
        return make_error(ErrorCode::invalid_argument, "a pid or a name is needed, and it is empty");
    if (!is_number(text)) return find_by_name(finder, text);
    pid_t pid = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), pid);
    if (failure != std::errc{}) return make_error(ErrorCode::no_process, "there is no process {}", text);
    return find_by_pid(finder, pid);
}

std::vector<Target> find_all(Finder& finder) {
    const auto user = ::geteuid();
    auto processes = finder.proc().list();
    std::erase_if(processes, [=](const Process& process) { return user != 0 && process.uid != user; });
    return connect_to_those_with_agents(finder, std::move(processes));
}

std::vector<Outcome> ask_status(std::vector<Target> targets, Milliseconds patience) {
    std::vector<Question> questions;
    questions.reserve(targets.size());
    for (auto& target : targets)
        questions.push_back({std::move(target.socket), model::StatusRequest{}, patience});
    auto answers = ask_all(std::move(questions), [](std::size_t, const model::Progress&) {});
    std::vector<Outcome> outcomes;
    for (std::size_t i = 0; i < targets.size(); ++i)
        outcomes.push_back({std::move(targets[i].process), std::move(answers[i])});
    return outcomes;
}

int exit_status_of(const Outcome& outcome) noexcept {
    if (const auto* failure = std::get_if<model::Failure>(&outcome.answer))
        return model::exit_status_of(*failure, outcome.asked);
    if (const auto* error = std::get_if<Error>(&outcome.answer)) return traits(error->code).exit_status;
    return exit_status::done;
}

int exit_status_of(const std::vector<Outcome>& outcomes) noexcept {
    for (const auto& outcome : outcomes)
        if (const int status = exit_status_of(outcome); status != exit_status::done) return status;
    return exit_status::done;
}

} // namespace gpu_sleep::cli
