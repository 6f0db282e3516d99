// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The results of sleeps and wakes in words, failures, and advice for them.

#include "cli/show/render.hpp"

#include "base/text.hpp"
#include "cli/show/table.hpp"

namespace gpu_sleep::cli {
namespace {

using model::DeviceReport;
using model::GateState;
using model::Operation;
using model::Report;
using model::State;

constexpr std::size_t k_long = 100; ///< columns of an error from which on the advice has its own line

Table device_table(const Report& report) {
    const bool sleeps = report.operation == Operation::sleep;
    using Headings = std::vector<std::string>;
    auto headings = sleeps ? Headings{"DEVICE", ">FREED", ">KEPT", ">DROPPED", ">USED BY ALL"}
                           : Headings{"DEVICE", ">TAKEN", ">RESTORED", ">ZEROED", ">GPU FREE"};
    if (report.dry_run)
        headings = sleeps ? Headings{"DEVICE", ">WOULD FREE", ">KEEP", ">DROP", ">USED BY ALL"}
                          : Headings{"DEVICE", ">WOULD TAKE", ">RESTORE", ">ZERO", ">GPU FREE"};
    Table table(std::move(headings));
    for (const auto& device : report.devices) {
        const Bytes free = report.dry_run ? device.free_before : device.free_after;
        const Bytes left = sleeps ? device.total - free : free;
        table.add({fmt::format("GPU {} {}", device.device, device.name), format_bytes(device.released),
                   format_bytes(device.kept), format_bytes(device.dropped),
                   device.total == 0 ? "-" : format_bytes(left)});
    }
    return table;
}

Bytes relocated(const Report& report) {
    return model::sum_of(report.devices, &DeviceReport::relocated);
}

/// Whether all that it did is moving what sleeps to another store.
bool only_relocates(const Report& report) {
    return relocated(report) != 0 && std::ranges::all_of(report.devices, [](const DeviceReport& device) {
               return device.released == 0 && device.kept == 0 && device.dropped == 0;
           });
}

std::string headline(const control::Process& process, const Report& report,
                     const model::SleepRequest* request, bool is_live) {
    const auto subject = fmt::format("{} {}", process.pid, label(process, report));
    const bool sleeps = report.operation == Operation::sleep;
    const auto level = sleeps && report.level != model::Level::pause // beside which other levels may sleep
                           ? fmt::format(" at level {}", static_cast<int>(report.level))
                           : std::string();
    const bool goes_deep = request && request->deep && report.dry_run && !report.deep;
    if (report.dry_run && !goes_deep && only_relocates(report))
        return fmt::format("{} stays {}; nothing was changed:\n", subject, state_words(report));
    if (report.dry_run && (!report.devices.empty() || goes_deep))
        return fmt::format("{} would {}{}{}; nothing was changed:\n", subject,
                           report.refusal.empty() ? "" : "not ",
                           is_live     ? "move to host memory"
                           : goes_deep ? "sleep deeply"
                           : sleeps    ? "sleep"
                                       : "wake",
                           is_live ? "" : level);
    if (rehearses_pause(report) && sleeps)
        return fmt::format("{} would be paused, which frees nothing; nothing was changed:\n", subject);
    if (report.dry_run && !sleeps && (report.deep || rehearses_pause(report)))
        return fmt::format("{} would wake; nothing was changed:\n", subject);
    if (only_relocates(report))
        return fmt::format("{} is still {} after {}:\n", subject, state_words(report),
                           format_seconds(report.times.total));
    if (report.tags.empty() && !report.deep && !report.changed && report.state == State::awake)
        return fmt::format("{} holds no memory that could sleep; nothing to do\n", subject);
    if (!report.changed && sleeps && report.state != State::asleep && !report.notes.empty())
        return fmt::format("{} stays {}; nothing was changed:\n", subject, state_words(report));
    if (!report.changed && is_live && (report.state == State::asleep || report.state == State::damaged))
        return fmt::format("{} is {}, so nothing moved; wake it first:\n", subject, state_words(report));
    if (!report.changed)
        return fmt::format("{} is already {}, {}\n", subject, state_words(report),
                           report.notes.empty() && report.state != State::damaged
                               ? "as asked; nothing to do"
                               : "and nothing was changed:");
    return fmt::format("{} is {}{} after {}:\n", subject, state_words(report),
                       model::is_resident(report.state) ? "" : level, format_seconds(report.times.total));
}

/// "3 processes are", "1 process is".
std::string subject(std::size_t count, std::string_view one, std::string_view several) {
    return count == 1 ? fmt::format("1 process {}", one) : fmt::format("{} processes {}", count, several);
}

/// The results of all processes, added up.
struct Sum {
    std::size_t count;
    std::size_t done = 0;
    std::size_t asleep = 0; ///< of a sleep, also those that did not go deep
    std::size_t deep = 0;
    std::size_t paused = 0;
    Bytes moved = 0;
    std::size_t movers = 0; ///< that moved some
    bool is_known = true;
    bool has_changed = false;
    bool is_rehearsal = false;
    bool is_sleep = false;
    bool would_fail = false;

    explicit Sum(const std::vector<control::Outcome>& outcomes) : count(outcomes.size()) {
        for (const auto& outcome : outcomes) {
            if (const auto* report = std::get_if<model::Report>(&outcome.answer)) {
                add(*report);
            } else if (const auto* failure = std::get_if<model::Failure>(&outcome.answer)) {
                asleep += failure->state == model::State::asleep;
            } else {
                is_known = is_known && client::error_of(outcome.answer)->code != ErrorCode::outcome_unknown;
            }
        }
    }

private:
    void add(const model::Report& report) {
        ++done;
        ++asleep;
        deep += report.deep;
        paused += report.state == model::State::paused || rehearses_pause(report);
        has_changed |= report.changed;
        is_rehearsal |= report.dry_run;
        is_sleep |= report.operation == Operation::sleep;
        would_fail |= report.refusal_code && !report.refusal.empty();
        if (!report.changed && !report.dry_run) return;
        const auto bytes = released(report) + (report.changed ? report.deep_bytes : 0);
        moved += bytes;
        movers += bytes != 0;
    }
};

/// What would keep a wake from failing so again; may be empty.
std::string_view for_next_time(ErrorCode code, const control::Outcome* outcome) noexcept {
    const bool lacks_room =
        outcome && outcome->asked == Operation::wake && code == ErrorCode::out_of_device_memory;
    if (!lacks_room || outcome->by_driver || outcome->has_made_room || outcome->nobody_can_sleep) return {};
    return "start it with gpu-run --share, and it makes room itself";
}

/// With "PID" in place of the process's.
std::string advice_for(std::string_view program, const Error& error, const control::Outcome* outcome) {
    const auto code = error.code;
    if (code == ErrorCode::out_of_disk && error.driver_status == EFBIG)
        return "raise the program's limit of file sizes: prlimit --fsize=unlimited --pid PID";
    if (outcome && code == ErrorCode::stopped)
        return "to resume it: " + control::ProcFs().how_to_go_on(outcome->process);
    const bool is_door = program == "gpu-sleep-http";
    const bool is_wake = outcome && outcome->asked == model::Operation::wake;
    if (outcome && !is_wake && code == ErrorCode::not_permitted && error.driver_status == EACCES)
        return "name a directory that the process's user may enter and change";
    const bool lacks_room = outcome && code == ErrorCode::out_of_device_memory;
    const bool is_by_driver = lacks_room && outcome->by_driver && is_wake;
    if (is_door && (is_by_driver || (lacks_room && outcome->has_made_room)))
        return "free GPU memory, or start gpu-sleep-http with a longer --wait";
    if (lacks_room && outcome->has_made_room && client::error_of(outcome->answer)->retry_seconds)
        return fmt::format("free GPU memory, give gpu-wake a longer --wait, or use gpu-switch {}",
                           outcome->process.pid);
    if (lacks_room && outcome->has_made_room)
        return fmt::format("free GPU memory, or give {} a longer --wait", program);
    if (is_by_driver || (lacks_room && outcome->nobody_can_sleep && !is_door))
        return outcome->has_waited ? "free GPU memory, or give gpu-wake a longer --wait"
                                   : "free GPU memory, or retry for longer with --wait 60s";
    if (is_door && is_wake && code == ErrorCode::out_of_device_memory)
        return "free GPU memory, or start gpu-sleep-http with --make-room or a longer --wait";
    if (outcome && outcome->has_waited && code == ErrorCode::out_of_device_memory)
        return "free GPU memory, or give gpu-wake --make-room or a longer --wait";
    if ((program == "gpu-sleep" || program == "gpu-reclaim" || is_door) &&
        code == ErrorCode::out_of_device_memory)
        return "free GPU memory, and try again"; // which the copying takes a little of
    if (program == "gpu-run" && code == ErrorCode::out_of_device_memory)
        return "end a process that holds GPU memory, or ask for less with --need";
    const bool has_timeout = program != "gpu-run" && program != "gpu-inhibit" && !is_door;
    if (!has_timeout && code == ErrorCode::timed_out) return "try again";
    const bool lacks_host_memory = code == ErrorCode::out_of_host_memory;
    if ((program == "gpu-run" || program == "gpu-snapshot" || is_door) && lacks_host_memory)
        return "free host memory"; // they have no --level
    // Do not advise to drop what is asleep because there is too little memory to wake it.
    if ((program == "gpu-wake" || program == "gpu-switch") && lacks_host_memory)
        return "free host memory, or raise the process's limit, and wake it again";
    const bool takes_all = program == "gpu-sleep" || program == "gpu-wake" || program == "gpu-inhibit";
    if (takes_all && code == ErrorCode::ambiguous_name) return "name one by its pid, or all of them by --all";
    // It reads files of whatever origin, and changes no process.
    if (program == "gpu-snapshot" && code != ErrorCode::out_of_disk && code != ErrorCode::internal) return {};
    return std::string(traits(code).advice);
}

/// Puts `pid` in place of each "PID".
std::string with_pid(std::string text, pid_t pid) {
    constexpr std::string_view k_word = "PID";
    for (auto at = text.find(k_word); at != text.npos; at = text.find(k_word, at))
        text.replace(at, k_word.size(), std::to_string(pid));
    return text;
}

} // namespace

std::string render_operation(const control::Process& process, const Report& report,
                             const model::SleepRequest* request, bool is_live) {
    auto text = headline(process, report, request, is_live);
    const bool has_figures = report.changed || report.dry_run;
    if (has_figures && !report.devices.empty() && !only_relocates(report))
        text += device_table(report).text(2);
    if (const auto bytes = relocated(report); bytes != 0)
        text += fmt::format("  {} {} of kept contents to another store\n",
                            report.dry_run ? "would move" : "moved", format_bytes(bytes));
    if (!report.dropped_without_refill.empty())
        text += fmt::format("  {} with no declared refill: {}\n", report.dry_run ? "would drop" : "dropped",
                            joined(report.dropped_without_refill));
    if (report.operation == Operation::wake && report.changed)
        for (const auto& tag : report.tags)
            if (tag.needs_refill && !tag.policy.refillable &&
                tag.policy.retention != model::Retention::discard)
                text += fmt::format(
                    "  tag {} on GPU {}: dropped contents read as zeros until the program refills them\n",
                    printable(tag.tag), tag.device);
    if (report.operation == Operation::sleep && !report.dry_run && in_files(report) != 0)
        text += fmt::format("  contents in files in {}: {}, {} on disk\n", joined(report.directories),
                            format_bytes(in_files(report)), format_bytes(report.file_bytes));
    if (report.operation == Operation::sleep)
        for (const auto& residual : report.residual) text += fmt::format("  {}\n", residual_line(residual));
    if (report.deep) text += fmt::format("  {}\n", deep_line(report));
    if (report.state == State::damaged) text += fmt::format("  {}\n", damaged_line(process));
    if (report.gate != GateState::open) text += fmt::format("  {}\n", gate_line(report, request));
    if (report.retained_bytes != 0) text += fmt::format("  {}\n", retained_line(report));
    for (const auto& note : report.notes) text += fmt::format("  {}\n", printable(note));
    if (text.ends_with(":\n")) text.replace(text.size() - 2, 1, ""); // nothing follows
    return text;
}

std::string render_driver_operation(const control::Process& process, const Report& report) {
    const auto subject = fmt::format("{} {}", process.pid, label(process, report));
    const bool sleeps = report.operation == Operation::sleep;
    const bool is_left = sleeps && report.state == State::awake && released(report) == 0;
    auto text = is_left ? fmt::format("{} stays awake:\n", subject)
                        : fmt::format("{} is already {}; nothing to do\n", subject, state_words(report));
    if (!is_left && report.dry_run && report.state == (sleeps ? State::awake : State::asleep))
        text = fmt::format("{} would {}be {} by the driver; nothing was changed:\n", subject,
                           report.refusal.empty() ? "" : "not ", sleeps ? "put to sleep" : "woken");
    if (report.changed)
        text = fmt::format("{} was {} by the driver in {}:\n", subject, sleeps ? "put to sleep" : "woken",
                           format_seconds(report.times.total));
    if (!report.devices.empty()) text += device_table(report).text(2);
    for (const auto& note : report.notes) text += fmt::format("  {}\n", printable(note));
    return text;
}

std::string render_total(const std::vector<control::Outcome>& outcomes) {
    const Sum sum(outcomes);
    if (sum.movers < 2) return {};
    return fmt::format("{} of GPU memory {}{} in all\n", format_bytes(sum.moved),
                       sum.is_rehearsal ? "would be " : "", sum.is_sleep ? "freed" : "taken");
}

std::string render_inhibition(const control::Process& process, const Report& report) {
    return fmt::format("{} {}: {}\n", process.pid, label(process, report), inhibition_line(report));
}

std::string render_reasons(const control::Process& process, const Report& report) {
    auto text = fmt::format("{} {}: {} {}\n", process.pid, label(process, report), state_words(report),
                            format_seconds(report.state_seconds));
    if (report.inhibited) text += fmt::format("  prevented by: {}\n", inhibition_line(report));
    if (!report.idle_seconds)
        text += "  it is not known when it last worked\n";
    else if (*report.idle_seconds == 0)
        text += "  it worked or woke within the last 4 s\n"; // which is how finely agents count
    else
        text += fmt::format("  it last worked {} ago\n", format_seconds(*report.idle_seconds));
    auto kept = model::sum_of(report.tags, &model::TagReport::kept) + // of what sleeps
                model::sum_of(report.devices, &DeviceReport::kept);
    kept -= std::min(kept, model::sum_of(report.tags, &model::TagReport::in_place)); // only mapped
    text += fmt::format("  a sleep would free {}\n", format_bytes(released(report)));
    if (report.refusal.empty() && !report.inhibited) text += "  nothing prevents it\n";
    for (const auto& note : report.notes)
        if (!report.inhibited || !note.starts_with("sleeps are inhibited")) // said already
            text += fmt::format("  {}{}\n", note == report.refusal ? "prevented by: " : "", printable(note));
    if (report.woken_bytes == 0 || report.woken_seconds <= 0)
        return text + "  time to wake: unknown, because it has not woken from a sleep yet\n";
    const auto seconds =
        report.woken_seconds * static_cast<double>(kept) / static_cast<double>(report.woken_bytes);
    return text + fmt::format("  waking would take {} for {}, as fast as last time ({} in {})\n",
                              format_seconds(seconds), format_bytes(kept), format_bytes(report.woken_bytes),
                              format_seconds(report.woken_seconds));
}

std::string render_error(std::string_view program, std::string_view purpose, const Error& error,
                         const control::Outcome* outcome) {
    auto text = fmt::format("{}: ", program);
    if (!purpose.empty()) text += fmt::format("cannot {}: ", purpose);
    text += error.message;
    const auto now = advice_from(program, error, outcome);
    const auto later = for_next_time(error.code, outcome);
    if (now.empty() || (later.empty() && text.size() + now.size() <= k_long))
        return printable(text + (now.empty() ? "" : "; ") + now) + '\n';
    text = fmt::format("{}\n  now: {}\n", printable(text), printable(now));
    return later.empty() ? text : text + fmt::format("  next time: {}\n", later);
}

std::string render_failure(std::string_view program, std::string_view purpose,
                           const control::Outcome& outcome) {
    const auto* const error = client::error_of(outcome.answer);
    const auto subject = title(outcome.process);
    if (!error && outcome.unreleased != 0)
        return fmt::format(
            "{}: {}: the driver did not release {} of what sleeps; the next wake takes it back\n", program,
            subject, format_bytes(outcome.unreleased));
    if (!error) return {};
    return render_error(program, fmt::format(fmt::runtime(purpose), subject), without(subject, *error),
                        &outcome);
}

Error without(const std::string& subject, Error error) {
    auto& message = error.message;
    if (message.starts_with(subject + ": ")) message.erase(0, subject.size() + 2);
    const auto again = "process " + subject;
    if (message.starts_with("there is no " + again)) return error;
    for (auto at = message.find(again); at != std::string::npos; at = message.find(again, at))
        message.replace(at, again.size(), "it");
    return error;
}

std::string render_together(const std::vector<control::Outcome>& outcomes, const model::SleepRequest* sleep) {
    const bool pauses = sleep && sleep->level == model::Level::pause; // of which some may sleep already
    const Sum sum(outcomes);
    const auto size = format_bytes(sum.moved);
    const auto all = subject(sum.count, "is", "are");
    const bool paused = sum.paused == sum.count;
    const auto* const state = !sleep ? "awake" : paused ? "paused" : pauses ? "paused or asleep" : "asleep";
    const auto* const deed = !sleep        ? "wake"
                             : paused      ? "be paused"
                             : pauses      ? "be paused or asleep"
                             : sleep->deep ? "sleep deeply"
                                           : "sleep";
    if (sum.would_fail)
        return fmt::format("none of {} {}; nothing was changed\n", subject(sum.count, "would", "would"),
                           deed);
    if (sum.done == sum.count && sum.is_rehearsal)
        return fmt::format("{} {}; {} of GPU memory would be {}; nothing was changed\n",
                           subject(sum.count, "would", "would"), deed, size, sleep ? "freed" : "taken");
    if (sum.done == sum.count)
        return fmt::format("{} {}; {} of GPU memory {}\n", all,
                           sleep && sum.deep == sum.count ? "deeply asleep" : state, size,
                           sleep ? "freed" : "taken");
    if (sleep && sleep->deep && sum.asleep == sum.count)
        return fmt::format("{} asleep, {} of them deeply; the same command continues from there\n", all,
                           sum.deep);
    if (!sum.has_changed && sum.is_known)
        return fmt::format("none of {} {}\n", subject(sum.count, "was", "was"),
                           !sleep   ? "woken"
                           : pauses ? "paused"
                                    : "put to sleep");
    return fmt::format("{} of {} {}; the same command completes it\n", sleep ? sum.asleep : sum.done,
                       subject(sum.count, "is known to be", "are known to be"), state);
}

std::string damaged_line(const control::Process& process) {
    return "contents are damaged; " + with_pid(std::string(traits(ErrorCode::damaged).advice), process.pid);
}

std::string advice_from(std::string_view program, const Error& error, const control::Outcome* outcome) {
    auto advice = advice_for(program, error, outcome);
    return outcome ? with_pid(std::move(advice), outcome->process.pid) : advice;
}

} // namespace gpu_sleep::cli
