// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// In plain words.

#include "cli/show/render_lines.hpp"

#include "base/text.hpp"
#include "base/units.hpp"
#include "cli/show/table.hpp"

#include <fmt/ranges.h>

namespace gpu_sleep::cli {

using model::GateState;
using model::OnTouch;
using model::Report;
using model::State;

namespace {

std::string_view words_for(OnTouch on_touch) noexcept {
    switch (on_touch) {
    case OnTouch::wait: return "waits";
    case OnTouch::wake: return "wakes the process";
    case OnTouch::fail: return "fails";
    }
    return "unknown";
}

std::string_view words_for(GateState gate) noexcept {
    switch (gate) {
    case GateState::open: return "open; once asleep, work on the GPU";
    case GateState::checked: return "checked: work that names a sleeping address";
    case GateState::shut: return "shut: work on the GPU";
    }
    return "unknown";
}

} // namespace

std::string_view state_words(State state) noexcept {
    switch (state) {
    case State::awake: return "awake";
    case State::asleep: return "asleep";
    case State::partial: return "partly asleep";
    case State::damaged: return "asleep, damaged";
    case State::paused: return "paused";
    }
    return "unknown";
}

std::string_view state_words(const Report& report) noexcept {
    if (report.lost) return "lost";
    return report.deep && report.state == State::asleep ? "deeply asleep" : state_words(report.state);
}

std::string label(const control::Process& process, const Report& report) {
    return shortened(report.name.empty() ? display_name(process) : report.name, k_label_columns);
}

std::string joined(const std::vector<std::string>& words) {
    return printable(fmt::format("{}", fmt::join(words, ", ")));
}

std::string gate_line(const Report& report, const model::SleepRequest* request) {
    auto text = fmt::format("gate {} {}", words_for(report.gate), words_for(report.on_touch));
    const auto last = shortened(report.last_touch, k_label_columns);
    if (report.waiting != 0)
        text +=
            fmt::format("; {} {}", counted(report.waiting, "thread"), report.waiting == 1 ? "waits" : "wait");
    if (report.touches != 0) text += fmt::format("; held {} so far", counted(report.touches, "time"));
    if (!last.empty() && report.touches != 0) text += fmt::format(", last {}", last);
    if (request && !request->tags.empty() && !request->gate && report.gate == GateState::shut)
        text += "; --gate checked lets work that names none of these tags pass";
    return text;
}

std::string inhibition_line(const Report& report) {
    if (!report.inhibited) return "sleeps are not inhibited";
    if (!report.inhibited_seconds) return "sleeps are inhibited";
    return fmt::format("sleeps are inhibited for another {}", format_seconds(*report.inhibited_seconds));
}

std::string residual_line(const model::Residual& residual) {
    const auto size =
        fmt::format("{} in {}", format_bytes(residual.bytes), counted(residual.count, "allocation"));
    auto text = residual.kind == model::k_residual_of_host
                    ? fmt::format("stays in host memory, where GPU {} uses it: {}", residual.device, size)
                    : fmt::format("stays on GPU {}: {} {}", residual.device, residual.kind, size);
    if (!residual.reason.empty()) text += fmt::format(" ({})", residual.reason);
    return printable(text);
}

Bytes in_files(const Report& report) {
    return model::sum_of(report.tags, &model::TagReport::in_files);
}

std::string retained_line(const Report& report) {
    return fmt::format("{} of host memory is retained for the next sleep",
                       format_bytes(report.retained_bytes));
}

std::string deep_line(const Report& report) {
    return fmt::format("the driver has also removed the rest from the GPU: {}",
                       format_bytes(report.deep_bytes));
}

bool rehearses_pause(const Report& report) noexcept {
    if (!report.dry_run) return false;
    if (report.operation == model::Operation::wake) return report.state == State::paused;
    return report.level == model::Level::pause && report.state == State::awake; // else a note says it
}

bool does_something(const Report& report) noexcept {
    if (rehearses_pause(report)) return true;
    if (!report.dry_run) return report.changed;
    return std::any_of(report.devices.begin(), report.devices.end(),
                       [](const auto& device) { return device.released > 0 || device.relocated > 0; });
}

Bytes released(const Report& report) {
    return model::sum_of(report.devices, &model::DeviceReport::released);
}

} // namespace gpu_sleep::cli
