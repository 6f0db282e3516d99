// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a stranger's process may call itself and answer, to steer the terminal of whoever asks it.

#pragma once

#include "base/text.hpp"
#include "support/sample_reports.hpp"

namespace gpu_sleep::test {

/// An escape, C1 controls alone and as UTF-8, an override of direction, an isolate, an invisible space, a
/// tag, a byte order mark, separators of lines, an escape in too long a form, and lines of its own.
inline std::string hostile_text() {
    return "\033[2J\x9B"
           "31m\xC2\x9B"
           "31m\xE2\x80\xAE\xE2\x81\xA6\xE2\x80\x8B\xF3\xA0\x81\x81\xEF\xBB\xBF\xE2\x80\xA8\xC0\x9B"
           "31m\r\n\tgpu-sleep: all is well\n\x7F";
}

/// Whether a terminal shows all of it, newlines apart.
inline bool is_safe(std::string_view text) {
    while (!text.empty()) {
        const auto next = first_character(text);
        if (!next.is_shown && text.front() != '\n') return false;
        text.remove_prefix(next.bytes);
    }
    return true;
}

/// As sample_intercepted_sleep(), but of an operation, and every text is hostile.
inline model::Report hostile_report(model::Operation operation) {
    auto report = sample_intercepted_sleep();
    const auto text = hostile_text();
    report.operation = operation;
    report.name = report.last_touch = text;
    for (auto& tag : report.tags) tag.tag = text;
    for (auto& device : report.devices) device.name = text;
    report.dropped_without_refill = report.notes = report.directories = {text, text};
    for (auto& residual : report.residual) residual.kind = residual.reason = text;
    report.wakes_waiting = {{{text, text}, false, 1, text}};
    return report;
}

/// A failure of which every text is hostile.
inline model::Failure hostile_failure(ErrorCode code) {
    return {{code, hostile_text(), hostile_text(), 0}, model::State::awake};
}

} // namespace gpu_sleep::test
