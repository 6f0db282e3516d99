// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Decides which operations are transitions, counts them, and writes the lines of the journal.

#include "lifecycle/transitions.hpp"

#include "base/files.hpp"
#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/process.hpp"
#include "base/text.hpp"
#include "operations/deep_sleep.hpp"

#include <fmt/format.h>

namespace gpu_sleep::agent::lifecycle {
namespace {

using model::Transition;

bool changes_nothing(const server::Operation& operation) noexcept {
    return model::terms_in(operation)->dry_run || std::holds_alternative<model::ReleaseRequest>(operation) ||
           std::holds_alternative<model::LiveRequest>(operation) ||
           std::holds_alternative<model::CallRequest>(operation);
}

std::optional<Transition> tried(const server::Operation& operation, const model::Failure& failure) noexcept {
    if (changes_nothing(operation)) return {};
    if (std::holds_alternative<model::WakeRequest>(operation)) return Transition::wake;
    // A process that sleeps after a failed sleep slept before.
    const bool slept = failure.state == model::State::asleep || failure.state == model::State::damaged;
    return slept ? Transition::move : Transition::sleep;
}

/// A sleep may have set no more than how touches are met; a new pause has waited for the GPU. `was_shallow`:
/// the process was not deep before.
std::optional<Transition> done(const server::Operation& operation, const model::Report& report,
                               bool was_shallow) noexcept {
    if (changes_nothing(operation) || !report.changed) return {};
    if (std::holds_alternative<model::WakeRequest>(operation)) return Transition::wake;
    Bytes slept = 0;
    for (const auto& device : report.devices) slept += device.released + device.kept + device.dropped;
    const bool has_paused = report.level == model::Level::pause && report.times.drain > 0;
    const bool is_deeper = report.deep && was_shallow;
    if (slept > 0 || has_paused || is_deeper) return Transition::sleep;
    const auto moved = model::sum_of(report.devices, &model::DeviceReport::relocated);
    return moved > 0 ? std::optional(Transition::move) : std::nullopt;
}

/// The journal's words for one kind of transition.
struct Kind {
    std::string_view id;    ///< MESSAGE_ID, for good
    std::string_view field; ///< the name of the field with its bytes
    std::string_view words; ///< of those bytes
};

/// Of a sleep, a wake and a move.
constexpr Kind k_kinds[] = {
    {"5039d86e50eb47d484f3f27920c756e8", "GPU_SLEEP_BYTES_RELEASED", "of GPU memory released"},
    {"765f6839a3ba4ceaa1e8f4763217517e", "GPU_SLEEP_BYTES_TAKEN", "of GPU memory taken"},
    {"170de660c54d4857a0ed50cbfd0671f7", "GPU_SLEEP_BYTES_MOVED", "of contents moved to another store"}};

std::string words_for(const server::Job& job) {
    const auto& word = model::terms_in(job.operation)->asker;
    if (job.asker == server::Asker::command && !word.empty()) return printable(word);
    return std::string(model::word_of(job.asker, {"command", "program", "touch", "timer"}));
}

// Severities. Source: syslog(3).
constexpr std::string_view k_error = "3";
constexpr std::string_view k_warning = "4";
constexpr std::string_view k_info = "6";

std::string_view priority_of(const model::Failure* failure) noexcept {
    if (!failure) return k_info;
    return failure->error.code == ErrorCode::damaged ? k_error : k_warning;
}

std::string own_notebook() {
    constexpr std::size_t k_short_id = 8;
    const std::string notebook(setting(model::environment::k_notebook));
    const auto kernel = kernel_in(read_small_file("/proc/self/cmdline").value_or(""));
    return notebook.empty() && !kernel.empty() ? "kernel " + kernel.substr(0, k_short_id) : notebook;
}

} // namespace

Transitions::Transitions() : notebook_(own_notebook()) {}

std::optional<Transition> Transitions::count(const server::Operation& operation,
                                             const server::Outcome& outcome, double seconds) noexcept {
    const auto* const failure = std::get_if<model::Failure>(&outcome);
    const MutexLock lock(mutex_);
    if (failure && deep_bytes_ && !is_back_ && !operations::DeepSleep::is_deep()) {
        is_back_ = true;
        set_asleep_bytes(asleep_bytes_ - static_cast<double>(*deep_bytes_));
    }
    const auto transition = failure
                                ? tried(operation, *failure)
                                : done(operation, std::get<model::Report>(outcome), !deep_bytes_ || is_back_);
    if (!transition) return transition;
    auto& counts = counts_[static_cast<std::size_t>(*transition)];
    if (failure) {
        const auto code = static_cast<std::size_t>(failure->error.code);
        ++counts.failed[code < k_codes ? code : static_cast<std::size_t>(ErrorCode::internal)];
        return transition;
    }
    const auto bound =
        std::lower_bound(model::k_duration_bounds.begin(), model::k_duration_bounds.end(), seconds);
    ++counts.done[static_cast<std::size_t>(bound - model::k_duration_bounds.begin())];
    counts.done_seconds += seconds;
    return transition;
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

model::Event Transitions::describe(Transition transition, const server::Job& job,
                                   const server::Outcome& outcome, std::string name) {
    constexpr std::size_t k_most_events = 100; // that wait to be written
    model::Event event;
    event.name = name.empty() ? program_invocation_short_name : std::move(name);
    event.notebook = notebook_;
    event.job = job_;
    event.asked_by = words_for(job);
    // Root of an outer user namespace shows as the overflow user; no other user than this one may ask.
    event.asker_uid = job.asker_uid == ::geteuid() ? job.asker_uid : 0;
    const auto* const report = std::get_if<model::Report>(&outcome);
    if (!report) return event;
    event.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    event.uid = ::geteuid();
    event.pid = static_cast<std::uint32_t>(::getpid());
    if (const auto start = own_start_time()) event.start_time = *start;
    event.transition = transition;
    event.state = report->state;
    event.level = report->level;
    event.deep = report->deep;
    const auto kept = model::sum_of(report->tags, &model::TagReport::kept);
    const auto in_files = model::sum_of(report->tags, &model::TagReport::in_files);
    event.place = kept == 0 ? "none" : in_files == 0 ? "host" : in_files == kept ? "file" : "host+file";
    event.bytes =
        model::sum_of(report->devices, transition == Transition::move ? &model::DeviceReport::relocated
                                                                      : &model::DeviceReport::released);
    const MutexLock lock(mutex_);
    const auto deep_bytes = report->deep ? std::optional(report->deep_bytes) : std::nullopt;
    if (std::exchange(is_back_, false) && transition != Transition::wake) deep_bytes_.reset();
    if (deep_bytes.has_value() != deep_bytes_.has_value())
        event.bytes +=
            deep_bytes.value_or(0) + deep_bytes_.value_or(0); // the driver's part went, or came back
    deep_bytes_ = deep_bytes;
    set_asleep_bytes(static_cast<double>(kept + model::sum_of(report->tags, &model::TagReport::dropped) +
                                         model::sum_of(report->tags, &model::TagReport::damaged) +
                                         deep_bytes.value_or(0)));
    if (transition == Transition::wake && asleep_since_) event.asleep_seconds = seconds_since(*asleep_since_);
    if (report->state == model::State::awake)
        asleep_since_.reset();
    else if (!asleep_since_)
        asleep_since_ = Clock::now();
    if (events_.size() < k_most_events) events_.push_back(event);
    return event;
}

void write_journal(const std::string& socket, Transition transition, const server::Outcome& outcome,
                   double seconds, const model::Event& event) noexcept {
    if (socket.empty()) return;
    ignoring_errors([&] {
        const auto& kind = k_kinds[static_cast<std::size_t>(transition)];
        const auto operation = model::to_string(transition);
        const auto* const failure = std::get_if<model::Failure>(&outcome);
        const auto* const report = std::get_if<model::Report>(&outcome);
        const auto subject = printable(event.name);
        const auto state = report ? model::to_string(report->state) : model::to_string(failure->state);
        const auto message =
            failure
                ? fmt::format("{}: {} failed: {}", subject, operation, failure->error.message)
                : fmt::format(
                      "{}: {} after {}, {} {}{}", subject, state, format_seconds(seconds),
                      format_bytes(event.bytes), kind.words,
                      event.asleep_seconds > 0 ? ", asleep for " + format_seconds(event.asleep_seconds) : "");
        const auto time = fmt::format("{:.6f}", seconds);
        const auto asleep = fmt::format("{:.3f}", event.asleep_seconds);
        const auto level = std::to_string(static_cast<int>(event.level));
        const auto asker = std::to_string(event.asker_uid);
        const auto amount = std::to_string(event.bytes);
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
            {"GPU_SLEEP_ASKED_BY", event.asked_by},
            {"GPU_SLEEP_ASKED_BY_UID", asker}};
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
