// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Composing lines and members.

#include "cli/doctor/diagnosis.hpp"

#include "base/text.hpp"
#include "cli/show/json_value.hpp"

#include <algorithm>
#include <cstddef>

namespace gpu_sleep::cli::doctor {

using gpu_sleep::doctor::Diagnosis;
using gpu_sleep::doctor::Finding;
using gpu_sleep::doctor::Findings;
using gpu_sleep::doctor::Level;

namespace {

std::string_view word_for(Level level) noexcept {
    switch (level) {
    case Level::ok: return "ok";
    case Level::warn: return "warn";
    case Level::bad: break;
    }
    return "bad";
}

struct Line {
    std::string subject;
    const Finding* finding;
};

OrderedJson to_value(const Findings& findings) {
    auto values = OrderedJson::array();
    for (const auto& finding : findings)
        values.push_back({{"id", finding.id},
                          {"level", word_for(finding.level)},
                          {"subject", finding.subject},
                          {"finding", finding.text},
                          {"advice", finding.advice},
                          {"exit_status", finding.exit_status}});
    return values;
}

} // namespace

std::string render(const Diagnosis& diagnosis, bool bad_only) {
    std::vector<Line> lines;
    const auto add = [&](const std::string& prefix, const Findings& findings) {
        for (const auto& finding : findings)
            if (!bad_only || finding.level == Level::bad)
                lines.push_back({fmt::format("{}{}:", prefix, finding.subject), &finding});
    };
    add("", diagnosis.machine);
    for (const auto& [process, findings] : diagnosis.processes)
        add(fmt::format("{} ", process.pid), findings);
    std::size_t width = 0;
    for (const auto& line : lines) width = std::max(width, line.subject.size());
    std::string text;
    for (const auto& [subject, finding] : lines)
        text += fmt::format("{:<4}  {:<{}} {}{}{}\n", word_for(finding->level), subject, width,
                            printable(finding->text), finding->advice.empty() ? "" : "; ",
                            printable(finding->advice));
    return text;
}

std::string to_json(const Diagnosis& diagnosis) {
    auto value = document("gpu-doctor", exit_status_of(diagnosis));
    value["machine"] = to_value(diagnosis.machine);
    for (const auto& [process, findings] : diagnosis.processes)
        value["processes"].push_back({{"pid", process.pid},
                                      {"namespace_pid", process.inner_pid},
                                      {"user", control::user_name(process.uid)},
                                      {"uid", process.uid},
                                      {"command", process.command},
                                      {"exit_status", exit_status_of(findings)},
                                      {"checks", to_value(findings)}});
    return written(value);
}

} // namespace gpu_sleep::cli::doctor
