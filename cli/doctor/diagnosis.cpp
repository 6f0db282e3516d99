// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The child that asks, the pipe that its answer comes through, and its end; composing lines and members.

#include "cli/doctor/diagnosis.hpp"

#include "base/text.hpp"
#include "cli/show/json.hpp"
#include "protocol/wire.hpp"

#include <nlohmann/json.hpp>

#include <signal.h>
#include <sys/prctl.h>
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

} // namespace gpu_sleep::cli::doctor
