// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The text of a bug report. What it may say of a process is listed here, one by one: all else stays out.

#include "base/text.hpp"
#include "cli/doctor/diagnosis.hpp"

#include <fmt/ranges.h>

#include <sys/utsname.h>

namespace gpu_sleep::cli::doctor {

using gpu_sleep::doctor::Diagnosis;

namespace {

/// `text` with "PATH" for each word that begins like one.
std::string without_paths(std::string_view text) {
    constexpr std::string_view k_ends = " '\"():;,=";
    std::string kept;
    while (!text.empty()) {
        const auto end = std::min(text.find_first_of(k_ends), text.size());
        const auto word = text.substr(0, end);
        const bool is_path = word.starts_with('/') || word.starts_with("./") || word.starts_with('~');
        kept += is_path ? "PATH" : word;
        if (end < text.size()) kept += text[end];
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return kept;
}

void add_memory(std::string& text, const model::Report& report) {
    text += fmt::format("  kept: {} in host memory, {} in files, {} retained, {} not released\n",
                        format_bytes(report.host_bytes), format_bytes(report.file_bytes),
                        format_bytes(report.retained_bytes), format_bytes(report.unreleased_bytes));
    int number = 0;
    for (const auto& tag : report.tags)
        text += fmt::format(
            "  tag number {} on GPU {}: {}, policy {}, {}, {} of which {} on the GPU, {} kept, {} in "
            "files, {} dropped, {} damaged{}\n",
            ++number, tag.device, to_string(tag.state), to_string(tag.policy.retention),
            counted(tag.ranges, "range"), format_bytes(tag.bytes), format_bytes(tag.resident),
            format_bytes(tag.kept), format_bytes(tag.in_files), format_bytes(tag.dropped),
            format_bytes(tag.damaged), tag.needs_refill ? ", needs a refill" : "");
    for (const auto& residual : report.residual)
        text += fmt::format("  stays on GPU {}: {} of the kind {}\n", residual.device,
                            format_bytes(residual.bytes), residual.kind);
}

void add_past(std::string& text, const model::Report& report) {
    for (const auto& wake : report.wakes_waiting)
        text += fmt::format("  a wake {} has waited for GPU memory for {}, number {} in the queue\n",
                            wake.by_touch ? "by GPU work" : "by a command", format_seconds(wake.seconds),
                            wake.place);
    for (const auto& counts : report.transitions) {
        text += fmt::format("  {}: {} done in {} altogether", to_string(counts.transition),
                            model::done_of(counts), format_seconds(counts.done_seconds));
        for (const auto& [code, count] : counts.failed)
            text += fmt::format(", {} failed ({})", count, traits(code).name);
        text += '\n';
    }
    text += report.steps.empty() ? "  no steps yet\n" : "  last steps (UTC):\n";
    for (const auto& step : report.steps) text += fmt::format("    {}\n", step);
}

void add_status(std::string& text, const client::Answer& status) {
    if (const auto* const error = client::error_of(status)) {
        text += fmt::format("  its agent says: {}\n", traits(error->code).name);
        return;
    }
    const auto& report = std::get<model::Report>(status);
    text += fmt::format("  agent {}, {}\n", report.version,
                        report.intercepts ? "which sees the program's calls"
                                          : "which does not see the program's calls");
    text += fmt::format("  {} for {}{}{}; gate {}; on touch {}; {} threads wait, {} touches, the last {}{}\n",
                        to_string(report.state), format_seconds(report.state_seconds),
                        report.deep ? ", deeply" : "", report.lost ? ", lost" : "", to_string(report.gate),
                        to_string(report.on_touch), report.waiting, report.touches,
                        report.last_touch.empty() ? "none" : report.last_touch,
                        report.inhibited ? "; sleeps are inhibited" : "");
    add_memory(text, report);
    add_past(text, report);
}

} // namespace

std::string bug_report(const Diagnosis& diagnosis) {
    utsname kernel{};
    ::uname(&kernel);
    auto text = fmt::format("gpu-sleep {} (protocol {}), {} {} {}\n", GPU_SLEEP_VERSION, protocol::k_version,
                            kernel.sysname, kernel.release, kernel.machine);
    for (const auto& finding : diagnosis.machine) {
        const bool names_path = finding.id == "directory";
        text += fmt::format("{}: {}{}{}\n", finding.id, word_for(finding.level), names_path ? "" : " ",
                            names_path ? "" : without_paths(finding.text));
    }
    for (const auto& [process, findings, status, settings] : diagnosis.processes) {
        text += fmt::format("process {}\n  settings: {}\n", process.pid,
                            settings.empty() ? "none" : fmt::format("{}", fmt::join(settings, ", ")));
        add_status(text, status);
        for (const auto& finding : findings)
            text += fmt::format("  {}: {}, exit status {}\n", finding.id, word_for(finding.level),
                                finding.exit_status);
    }
    return printable_lines(text);
}

} // namespace gpu_sleep::cli::doctor
