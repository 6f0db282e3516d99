// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The child that asks, the pipe that its answer comes through, and its end; composing lines and members.

#include "cli/doctor/diagnosis.hpp"

#include "base/text.hpp"
#include "cli/show/json.hpp"
#include "protocol/wire.hpp"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>

namespace gpu_sleep::cli::doctor {

using gpu_sleep::doctor::Diagnosis;
using gpu_sleep::doctor::Finding;
using gpu_sleep::doctor::Findings;
using gpu_sleep::doctor::Level;

namespace {

/// An answer is its first byte and what follows: the text, or an error as the protocol writes it.
constexpr char k_text = 'T';
constexpr char k_error = 'E';

std::string encode(const Result<std::string>& answer) {
    if (answer) return k_text + *answer;
    protocol::Writer bytes;
    bytes.write(answer.error());
    return k_error + std::string(reinterpret_cast<const char*>(bytes.bytes().data()), bytes.bytes().size());
}

/// Nothing where it is not whole.
std::optional<Result<std::string>> decode(std::string_view bytes) {
    if (bytes.starts_with(k_text)) return Result<std::string>(std::string(bytes.substr(1)));
    if (!bytes.starts_with(k_error)) return {};
    protocol::Reader reader(std::as_bytes(std::span(bytes.substr(1))));
    Error error;
    reader.read(error);
    return reader.ok() ? std::optional(Result<std::string>(std::move(error))) : std::nullopt;
}

void write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const auto written = ::write(fd, bytes.data(), bytes.size());
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return;
        bytes.remove_prefix(static_cast<std::size_t>(written));
    }
}

/// What the child does; never returns.
[[noreturn]] void answer(const std::function<Result<std::string>()>& ask, int fd, pid_t parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() == parent) {
        ::signal(SIGPIPE, SIG_IGN);
        write_all(fd, encode(ask()));
    }
    ::_exit(0); // what the driver registered for the end of a process is not run: it may hang, too
}

/// All until the end of the pipe; nothing where that does not come in time.
std::optional<std::string> read_until(int fd, Clock::time_point deadline) {
    std::string bytes;
    std::array<char, 4096> buffer{};
    for (;;) {
        pollfd readable{fd, POLLIN, 0};
        const int ready = ::poll(&readable, 1, milliseconds_until(deadline));
        if (ready < 0 && errno == EINTR) continue;
        if (ready <= 0) return {};
        const auto got = ::read(fd, buffer.data(), buffer.size());
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return bytes;
        bytes.append(buffer.data(), static_cast<std::size_t>(got));
    }
}

/// Waits for the child's end, and no longer than a moment: one in an uninterruptible call does not end.
/// Returns its wait status, or 0.
int reap(pid_t child) {
    constexpr Milliseconds k_patience{1'000};
    constexpr Milliseconds k_look_again{2};
    const auto deadline = Clock::now() + k_patience;
    int status = 0;
    for (;;) {
        const auto ended = ::waitpid(child, &status, WNOHANG);
        if (ended == child) return status;
        if (ended < 0 && errno != EINTR) return 0;
        if (Clock::now() >= deadline) return 0;
        std::this_thread::sleep_for(k_look_again);
    }
}

struct FindingLine {
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

// ---- The bug report. What it may say of a process is listed here, one by one: all else stays out.

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

std::string_view word_for(Level level) noexcept {
    return model::word_of(level, {"ok", "warn", "bad"});
}

Result<std::string> run_in_child(Milliseconds limit, const std::function<Result<std::string>()>& ask) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error(ErrorCode::io_failed, errno, "pipe2", "a check");
    UniqueFd from(ends[0]);
    UniqueFd into(ends[1]);
    const auto parent = ::getpid();
    const auto child = ::fork();
    if (child < 0) return errno_error(ErrorCode::out_of_threads, errno, "fork", "a check");
    if (child == 0) answer(ask, into.get(), parent);
    into.reset();
    const auto bytes = read_until(from.get(), Clock::now() + limit);
    if (!bytes) ::kill(child, SIGKILL);
    const int status = reap(child);
    if (!bytes)
        return make_error(ErrorCode::timed_out, "no answer within {}",
                          format_seconds(std::chrono::duration<double>(limit).count()));
    if (auto answer = decode(*bytes)) return *std::move(answer);
    if (WIFSIGNALED(status))
        return make_error(ErrorCode::driver_failed, "it killed the process that asked ({})",
                          ::strsignal(WTERMSIG(status)));
    return make_error(ErrorCode::driver_failed, "it ended the process that asked");
}

std::string render(const Diagnosis& diagnosis, bool bad_only) {
    std::vector<FindingLine> lines;
    const auto add = [&](const std::string& prefix, const Findings& findings) {
        for (const auto& finding : findings)
            if (!bad_only || finding.level == Level::bad)
                lines.push_back({fmt::format("{}{}:", prefix, finding.subject), &finding});
    };
    add("", diagnosis.machine);
    for (const auto& [process, findings, status, settings] : diagnosis.processes)
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
    for (const auto& [process, findings, status, settings] : diagnosis.processes)
        value["processes"].push_back({{"pid", process.pid},
                                      {"namespace_pid", process.inner_pid},
                                      {"user", control::user_name(process.uid)},
                                      {"uid", process.uid},
                                      {"command", process.command},
                                      {"exit_status", exit_status_of(findings)},
                                      {"checks", to_value(findings)}});
    return written(value);
}

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
