// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What counts as a transition, the counts, and what the lines say.

#include "lifecycle/transitions.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "base/text.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

namespace gpu_sleep::agent::lifecycle {
namespace {

using model::Transition;

bool changes_nothing(const server::Operation& operation) noexcept {
    return model::terms_in(operation)->dry_run || std::holds_alternative<model::ReleaseRequest>(operation) ||
           std::holds_alternative<model::LiveRequest>(operation) ||
           std::holds_alternative<model::CallRequest>(operation);
}

/// A sleep may have set no more than how touches are met; a new pause has waited for the GPU.
std::optional<Transition> done_sleep(const model::Report& report) noexcept {
    Bytes slept = 0;
    Bytes moved = 0;
    for (const auto& device : report.devices) {
        slept += device.released + device.kept + device.dropped;
        moved += device.relocated;
    }
    const bool has_paused = report.level == model::Level::pause && report.times.drain > 0;
    if (slept > 0 || has_paused) return Transition::sleep;
    return moved > 0 ? std::optional(Transition::move) : std::nullopt;
}

/// The journal's words for one kind of transition.
struct Kind {
    std::string_view id;    ///< MESSAGE_ID, for good
    std::string_view field; ///< the name of the field with its bytes
    std::string_view words; ///< of those bytes
};

Kind kind_of(Transition transition) noexcept {
    switch (transition) {
    case Transition::sleep:
        return {"5039d86e50eb47d484f3f27920c756e8", "GPU_SLEEP_BYTES_RELEASED", "of GPU memory released"};
    case Transition::wake:
        return {"765f6839a3ba4ceaa1e8f4763217517e", "GPU_SLEEP_BYTES_TAKEN", "of GPU memory taken"};
    case Transition::move: break;
    }
    return {"170de660c54d4857a0ed50cbfd0671f7", "GPU_SLEEP_BYTES_MOVED",
            "of contents moved to another store"};
}

Bytes bytes_of(Transition transition, const model::Report& report) noexcept {
    Bytes bytes = 0;
    for (const auto& device : report.devices)
        bytes += transition == Transition::move ? device.relocated : device.released;
    return bytes;
}

std::string words_for(server::Asker asker, const server::Operation& operation) {
    const auto& word = model::terms_in(operation)->asker;
    switch (asker) {
    case server::Asker::program: return "program";
    case server::Asker::touch: return "touch";
    case server::Asker::timer: return "timer";
    case server::Asker::command: break;
    }
    return word.empty() ? "command" : printable(word);
}

// Severities. Source: syslog(3).
constexpr std::string_view k_error = "3";
constexpr std::string_view k_warning = "4";
constexpr std::string_view k_info = "6";

std::string_view priority_of(const model::Failure* failure) noexcept {
    if (!failure) return k_info;
    return failure->error.code == ErrorCode::damaged ? k_error : k_warning;
}

} // namespace

std::optional<Transition> transition_of(const server::Operation& operation,
                                        const server::Outcome& outcome) noexcept {
    if (changes_nothing(operation)) return {};
    const bool wakes = std::holds_alternative<model::WakeRequest>(operation);
    if (const auto* report = std::get_if<model::Report>(&outcome)) {
        if (!report->changed) return {};
        return wakes ? Transition::wake : done_sleep(*report);
    }
    if (wakes) return Transition::wake;
    // A process that sleeps after a failed sleep slept before.
    const auto state = std::get<model::Failure>(outcome).state;
    const bool slept = state == model::State::asleep || state == model::State::damaged;
    return slept ? Transition::move : Transition::sleep;
}

void log_end(Transition transition, const server::Outcome& outcome, double seconds) {
    const auto* const failure = std::get_if<model::Failure>(&outcome);
    log::debug("{} {} after {}{}{}", model::to_string(transition), failure ? "failed" : "done",
               format_seconds(seconds), failure ? ": " : "",
               failure ? failure->error.message : std::string());
    if (failure) return;
    for (const auto& device : std::get<model::Report>(outcome).devices) {
        auto line = fmt::format("GPU {}, all threads together:", device.device);
        for (const auto step : model::k_steps)
            if (const auto took = device.steps[static_cast<std::size_t>(step)]; took > 0)
                line += fmt::format(" {} {},", model::to_string(step), format_seconds(took));
        line.pop_back(); // a colon where nothing was done
        log::debug("{}", line);
    }
}

void Transitions::count(Transition transition, const server::Outcome& outcome, double seconds) noexcept {
    const MutexLock lock(mutex_);
    auto& counts = counts_[static_cast<std::size_t>(transition)];
    if (const auto* failure = std::get_if<model::Failure>(&outcome)) {
        const auto code = static_cast<std::size_t>(failure->error.code);
        ++counts.failed[code < k_codes ? code : static_cast<std::size_t>(ErrorCode::internal)];
        return;
    }
    const auto bound =
        std::lower_bound(model::k_duration_bounds.begin(), model::k_duration_bounds.end(), seconds);
    ++counts.done[static_cast<std::size_t>(bound - model::k_duration_bounds.begin())];
    counts.done_seconds += seconds;
}

std::vector<model::TransitionCounts> Transitions::counts() const {
    std::vector<model::TransitionCounts> all;
    const MutexLock lock(mutex_);
    for (const auto transition : model::k_transitions) {
        const auto& counts = counts_[static_cast<std::size_t>(transition)];
        model::TransitionCounts row{transition, counts.done, counts.done_seconds, {}};
        for (std::size_t code = 0; code < counts.failed.size(); ++code)
            if (counts.failed[code] != 0)
                row.failed.push_back({static_cast<ErrorCode>(code), counts.failed[code]});
        if (model::done_of(row) != 0 || !row.failed.empty()) all.push_back(std::move(row));
    }
    return all;
}

model::Event Transitions::describe(Transition transition, const server::Operation& operation,
                                   const server::Outcome& outcome, server::Asker asker, std::string name) {
    constexpr std::size_t k_most_events = 100; // that wait to be written
    model::Event event;
    event.name = name.empty() ? program_invocation_short_name : std::move(name);
    event.notebook = notebook_;
    event.job = job_;
    event.asked_by = words_for(asker, operation);
    const auto* const report = std::get_if<model::Report>(&outcome);
    if (!report) return event;
    event.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    event.uid = ::geteuid();
    event.pid = static_cast<std::uint32_t>(::getpid());
    if (const auto start = own_start_time()) event.start_time = *start;
    event.operation = report->operation;
    event.state = report->state;
    event.level = report->level;
    event.deep = report->deep;
    const auto kept = model::sum_of(report->tags, &model::TagReport::kept);
    const auto in_files = model::sum_of(report->tags, &model::TagReport::in_files);
    event.place = kept == 0 ? "none" : in_files == 0 ? "host" : in_files == kept ? "file" : "host+file";
    event.bytes = bytes_of(transition, *report) + report->deep_bytes;
    const MutexLock lock(mutex_);
    if (transition == Transition::wake && asleep_since_) event.asleep_seconds = seconds_since(*asleep_since_);
    if (report->state == model::State::awake)
        asleep_since_.reset();
    else if (!asleep_since_)
        asleep_since_ = Clock::now();
    if (transition != Transition::move && events_.size() < k_most_events) events_.push_back(event);
    return event;
}

void write_journal(const std::string& socket, Transition transition, const server::Outcome& outcome,
                   double seconds, const model::Event& event) noexcept {
    if (socket.empty()) return;
    ignoring_errors([&] {
        const auto kind = kind_of(transition);
        const auto operation = model::to_string(transition);
        const auto* const failure = std::get_if<model::Failure>(&outcome);
        const auto* const report = std::get_if<model::Report>(&outcome);
        const auto bytes = report ? bytes_of(transition, *report) : 0;
        const auto subject = printable(event.name);
        const auto state = report ? model::to_string(report->state) : model::to_string(failure->state);
        const auto message =
            failure
                ? fmt::format("{}: {} failed: {}", subject, operation, failure->error.message)
                : fmt::format(
                      "{}: {} after {}, {} {}{}", subject, state, format_seconds(seconds),
                      format_bytes(bytes), kind.words,
                      event.asleep_seconds > 0 ? ", asleep for " + format_seconds(event.asleep_seconds) : "");
        const auto time = fmt::format("{:.6f}", seconds);
        const auto asleep = fmt::format("{:.3f}", event.asleep_seconds);
        const auto level = std::to_string(static_cast<int>(event.level));
        const auto amount = std::to_string(bytes);
        std::vector<journal::Field> fields{
            {"MESSAGE", message},
            {"MESSAGE_ID", kind.id},
            {"PRIORITY", priority_of(failure)},
            {"SYSLOG_IDENTIFIER", "gpu-sleep"},
            {"GPU_SLEEP_OPERATION", operation},
            {"GPU_SLEEP_RESULT", failure ? traits(failure->error.code).name : "done"},
            {"GPU_SLEEP_STATE", state},
            {"GPU_SLEEP_SECONDS", time},
            {"GPU_SLEEP_NAME", subject},
            {"GPU_SLEEP_NOTEBOOK", event.notebook},
            {"GPU_SLEEP_JOB", event.job},
            {"GPU_SLEEP_ASKED_BY", event.asked_by}};
        if (report)
            fields.insert(fields.end(), {{kind.field, amount},
                                         {"GPU_SLEEP_LEVEL", level},
                                         {"GPU_SLEEP_DEEP", event.deep ? "1" : "0"},
                                         {"GPU_SLEEP_PLACE", event.place},
                                         {"GPU_SLEEP_ASLEEP_SECONDS", asleep}});
        journal::send(socket, fields);
    });
}

} // namespace gpu_sleep::agent::lifecycle
