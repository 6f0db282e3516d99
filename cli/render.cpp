// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sentences and tables for people.

#include "cli/render.hpp"

#include "base/text.hpp"
#include "cli/advice.hpp"
#include "cli/table.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace gpu_sleep::cli {
namespace {

using model::DeviceReport;
using model::GateState;
using model::OnTouch;
using model::Operation;
using model::Report;
using model::State;
using model::TagReport;

constexpr auto k_left = Table::Align::left;
constexpr auto k_right = Table::Align::right;
constexpr std::size_t k_label_columns = 40;

std::string_view words_for(State state) noexcept {
    switch (state) {
    case State::awake: return "awake";
    case State::asleep: return "asleep";
    case State::partial: return "partly asleep";
    case State::damaged: return "asleep, damaged";
    }
    return "unknown";
}

std::string_view words_for(const Report& report) noexcept {
    return report.deep && report.state == State::asleep ? "asleep, deep" : words_for(report.state);
}

/// The name that the program gave itself, or else its command.
std::string label(const Process& process, const Report& report) {
    return shortened(report.name.empty() ? process.command : report.name, k_label_columns);
}

std::string joined(const std::vector<std::string>& words) {
    return printable(fmt::format("{}", fmt::join(words, ", ")));
}

// ---- The gate, and what stays
// ----------------------------------------------------------------------------------------------------

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

/// "gate shut: work on the GPU waits; 3 threads wait, the last in cuLaunchKernel; held 17 times so far".
std::string gate_line(const Report& report) {
    auto text = fmt::format("gate {} {}", words_for(report.gate), words_for(report.on_touch));
    const auto last = shortened(report.last_touch, k_label_columns);
    if (report.waiting != 0)
        text +=
            fmt::format("; {} {}", counted(report.waiting, "thread"), report.waiting == 1 ? "waits" : "wait");
    if (report.touches != 0) text += fmt::format("; held {} so far", counted(report.touches, "time"));
    if (!last.empty() && report.touches != 0) text += fmt::format(", last {}", last);
    return text;
}

/// "sleeps are inhibited for another 3 h 59 min".
std::string inhibition_line(const Report& report) {
    if (!report.inhibited) return "sleeps are not inhibited";
    if (!report.inhibited_seconds) return "sleeps are inhibited";
    return fmt::format("sleeps are inhibited for another {}", format_seconds(*report.inhibited_seconds));
}

/// "stays on GPU 0: managed 1.00 GiB in 3 allocations (the driver moves it by itself)".
std::string residual_line(const model::Residual& residual) {
    auto text = fmt::format("stays on GPU {}: {} {} in {}", residual.device, residual.kind,
                            format_bytes(residual.bytes), counted(residual.count, "allocation"));
    if (!residual.reason.empty()) text += fmt::format(" ({})", residual.reason);
    return printable(text);
}

/// "13.0 GiB of host memory are retained for the next sleep".
std::string retained_line(const Report& report) {
    return fmt::format("{} of host memory are retained for the next sleep",
                       format_bytes(report.retained_bytes));
}

/// "2nd".
std::string ordinal(std::uint32_t number) {
    constexpr std::uint32_t k_ten = 10;
    constexpr std::string_view k_ends[] = {"th", "st", "nd", "rd"};
    const bool is_teen = number / k_ten % k_ten == 1;
    const auto last = number % k_ten;
    return fmt::format("{}{}", number, k_ends[is_teen || last >= std::size(k_ends) ? 0 : last]);
}

/// "a wake of weights waits for GPU memory, for 12.50 s: waking needs 32.0 MiB on GPU 0, ...", or "waits for
/// room, 2nd in line, for 12.50 s".
std::string waiting_line(const model::WaitingWake& wake) {
    const auto what =
        wake.place == 0 ? std::string("GPU memory") : fmt::format("room, {} in line", ordinal(wake.place));
    auto text =
        fmt::format("a wake of {} waits for {}, for {}", wake.tags.empty() ? "all tags" : joined(wake.tags),
                    what, format_seconds(wake.seconds));
    return wake.reason.empty() ? text : text + fmt::format(": {}", printable(wake.reason));
}

// ---- The listing
// ----------------------------------------------------------------------------------------------------

/// "GPU", or "GPU 2.00 GiB, host 13.0 GiB" when the bytes are in several places.
std::string where(const TagReport& tag) {
    struct Place {
        std::string_view name;
        Bytes bytes;
    };
    std::vector<Place> places{{"GPU", tag.resident}};
    for (const auto store : model::k_stores)
        places.push_back({model::to_string(store), model::kept_in(tag, store)});
    places.push_back({"dropped", tag.dropped});
    places.push_back({"damaged", tag.damaged});
    std::erase_if(places, [](const Place& place) { return place.bytes == 0; });
    std::vector<std::string> words;
    words.reserve(places.size());
    for (const auto& [name, bytes] : places)
        words.push_back(places.size() == 1 ? std::string(name)
                                           : fmt::format("{} {}", name, format_bytes(bytes)));
    return fmt::format("{}{}", fmt::join(words, ", "), tag.needs_refill ? " (needs refill)" : "");
}

std::string policy(const TagReport& tag) {
    const auto retention = model::to_string(tag.policy.retention);
    return tag.policy.refillable ? fmt::format("{}, refillable", retention) : std::string(retention);
}

/// A process's tags and devices added up.
struct Sums {
    std::set<std::string_view> tags;
    std::set<int> devices;
    TagReport all; ///< the bytes of all tags

    explicit Sums(const Report& report) {
        for (const auto& tag : report.tags) {
            tags.insert(tag.tag);
            devices.insert(tag.device);
            all.bytes += tag.bytes;
            all.resident += tag.resident;
            all.kept += tag.kept;
            all.in_files += tag.in_files;
            all.dropped += tag.dropped;
            all.damaged += tag.damaged;
            all.needs_refill = all.needs_refill || tag.needs_refill;
        }
    }
};

/// "awake 2 h 5 min, idle 14 min 3 s", once it has been idle for a while.
std::string state_words(const Report& report) {
    constexpr double k_least_idle = 60;
    const auto state = fmt::format("{} {}", words_for(report), format_seconds(report.state_seconds));
    const bool may_work = report.state == State::awake || report.state == State::partial;
    const auto idle = report.idle_seconds.value_or(0);
    return may_work && idle >= k_least_idle ? fmt::format("{}, idle {}", state, format_seconds(idle)) : state;
}

std::string deep_line(const Report& report) {
    return fmt::format("the driver has taken the rest from the GPU, too: {}",
                       format_bytes(report.deep_bytes));
}

/// Empty where nothing is known.
std::string deep_refusal_line(const Report& report) {
    return report.deep_refusal.empty() ? std::string()
                                       : "cannot sleep deeply: " + printable(report.deep_refusal);
}

/// What its devices say is released, all together.
Bytes released(const Report& report) {
    Bytes bytes = 0;
    for (const auto& device : report.devices) bytes += device.released;
    return bytes;
}

/// Of one that has no agent: its GPUs in one line, for it has no tags.
void add_without_agent(Table& table, const Process& process, const Report& report) {
    const auto bytes = released(report);
    table.add({std::to_string(process.pid), user_name(process.uid), label(process, report),
               std::string(words_for(report)), "-",
               report.devices.empty() ? "-" : counted(report.devices.size(), "GPU"),
               bytes == 0 ? "-" : format_bytes(bytes), report.devices.empty() ? "host" : "GPU"});
    for (const auto& note : report.notes) table.add_line(note);
}

void add_process(Table& table, const Process& process, const Report& report, Detail detail) {
    const Sums sums(report);
    table.add({std::to_string(process.pid), user_name(process.uid), label(process, report),
               state_words(report), counted(sums.tags.size(), "tag"), counted(sums.devices.size(), "GPU"),
               format_bytes(sums.all.bytes), where(sums.all)});
    for (const auto& tag : report.tags)
        table.add({"", "", "", std::string(words_for(tag.state)), tag.tag, fmt::format("GPU {}", tag.device),
                   format_bytes(tag.bytes), where(tag), policy(tag)});
    if (report.intercepts || report.gate != GateState::open || report.touches != 0)
        table.add_line(gate_line(report));
    if (report.inhibited) table.add_line(inhibition_line(report));
    if (report.retained_bytes != 0) table.add_line(retained_line(report));
    for (const auto& residual : report.residual) table.add_line(residual_line(residual));
    if (report.deep) table.add_line(deep_line(report));
    if (const auto line = deep_refusal_line(report); detail == Detail::all && !line.empty())
        table.add_line(line);
    for (const auto& wake : report.wakes_waiting)
        if (!wake.by_touch || wake.place != 0) table.add_line(waiting_line(wake)); // else a note tells
    if (report.operation == Operation::status)
        for (const auto& note : report.notes) table.add_line(note);
}

// ---- A sleep or a wake
// ----------------------------------------------------------------------------------------------

/// The difference that the driver saw, or what the agent counted where the driver was not asked.
Bytes moved(const DeviceReport& device, Bytes less, Bytes more) {
    return device.total != 0 && more >= less ? more - less : device.released;
}

Table device_table(const Report& report) {
    const bool sleeps = report.operation == Operation::sleep;
    std::vector<std::string> headings =
        sleeps ? std::vector<std::string>{"FREED", "KEPT", "DROPPED", "STILL USED"}
               : std::vector<std::string>{"TAKEN", "RESTORED", "ZEROED", "STILL FREE"};
    if (report.dry_run)
        headings = sleeps ? std::vector<std::string>{"WOULD FREE", "KEEP", "DROP", "USED NOW"}
                          : std::vector<std::string>{"WOULD TAKE", "RESTORE", "ZERO", "FREE NOW"};
    std::vector<Table::Column> columns{{"DEVICE", k_left}};
    for (auto& heading : headings) columns.push_back({std::move(heading), k_right});
    Table table(std::move(columns));
    for (const auto& device : report.devices) {
        const Bytes free = report.dry_run ? device.free_before : device.free_after;
        const Bytes left = sleeps ? device.total - free : free;
        const Bytes amount = sleeps ? moved(device, device.free_before, device.free_after)
                                    : moved(device, device.free_after, device.free_before);
        table.add({fmt::format("GPU {} {}", device.device, device.name),
                   format_bytes(report.dry_run ? device.released : amount), format_bytes(device.kept),
                   format_bytes(device.dropped), device.total == 0 ? "-" : format_bytes(left)});
    }
    return table;
}

Bytes relocated(const Report& report) {
    Bytes sum = 0;
    for (const auto& device : report.devices) sum += device.relocated;
    return sum;
}

/// Whether all that it did is moving what sleeps to another store.
bool only_relocates(const Report& report) {
    return relocated(report) != 0 &&
           std::all_of(report.devices.begin(), report.devices.end(), [](const DeviceReport& device) {
               return device.released == 0 && device.kept == 0 && device.dropped == 0;
           });
}

std::string headline(const Process& process, const Report& report) {
    const auto subject = fmt::format("{} {}", process.pid, label(process, report));
    const bool sleeps = report.operation == Operation::sleep;
    const auto level = sleeps ? fmt::format(" at level {}", static_cast<int>(report.level)) : std::string();
    if (report.dry_run && only_relocates(report))
        return fmt::format("{} stays {}; nothing was changed:\n", subject, words_for(report));
    if (report.dry_run && !report.devices.empty())
        return fmt::format("{} would {}{}; nothing was changed:\n", subject, sleeps ? "sleep" : "wake",
                           level);
    if (report.dry_run && report.deep && !sleeps)
        return fmt::format("{} would wake; nothing was changed:\n", subject);
    if (only_relocates(report))
        return fmt::format("{} is {} still, after {}:\n", subject, words_for(report),
                           format_seconds(report.times.total));
    if (report.tags.empty() && !report.deep)
        return fmt::format("{} holds no memory that could sleep; nothing to do\n", subject);
    if (!report.changed && sleeps && report.state != State::asleep && !report.notes.empty())
        return fmt::format("{} stays {}; nothing was changed:\n", subject, words_for(report));
    if (!report.changed)
        return fmt::format("{} is {} already, {}\n", subject, words_for(report),
                           report.notes.empty() ? "as asked; nothing to do" : "and nothing was changed:");
    return fmt::format("{} is {}{} after {}:\n", subject, words_for(report),
                       report.state == model::State::awake ? "" : level, format_seconds(report.times.total));
}

} // namespace

std::string render_operation(const Process& process, const Report& report) {
    auto text = headline(process, report);
    if (!report.devices.empty() && !only_relocates(report)) text += device_table(report).text(2);
    if (const auto bytes = relocated(report); bytes != 0)
        text += fmt::format("  {} {} of kept contents to another store\n",
                            report.dry_run ? "would move" : "moved", format_bytes(bytes));
    if (!report.dropped_without_refill.empty())
        text += fmt::format("  {} with no declared refill: {}\n", report.dry_run ? "would drop" : "dropped",
                            joined(report.dropped_without_refill));
    if (report.operation == Operation::sleep)
        for (const auto& residual : report.residual) text += fmt::format("  {}\n", residual_line(residual));
    if (report.deep) text += fmt::format("  {}\n", deep_line(report));
    if (report.gate != GateState::open) text += fmt::format("  {}\n", gate_line(report));
    if (report.retained_bytes != 0) text += fmt::format("  {}\n", retained_line(report));
    for (const auto& note : report.notes) text += fmt::format("  {}\n", printable(note));
    return text;
}

std::string render_driver_operation(const Process& process, const Report& report) {
    const auto subject = fmt::format("{} {}", process.pid, label(process, report));
    const bool sleeps = report.operation == Operation::sleep;
    const bool is_left = sleeps && report.state == State::awake && released(report) == 0;
    auto text = is_left ? fmt::format("{} stays awake:\n", subject)
                        : fmt::format("{} is {} already; nothing to do\n", subject, words_for(report));
    if (!is_left && report.dry_run && report.state == (sleeps ? State::awake : State::asleep))
        text = fmt::format("{} would be {} by the driver; nothing was changed:\n", subject,
                           sleeps ? "put to sleep" : "woken");
    if (report.changed)
        text = fmt::format("{} is {} by the driver after {}:\n", subject, sleeps ? "asleep" : "awake",
                           format_seconds(report.times.total));
    if (!report.devices.empty()) text += device_table(report).text(2);
    for (const auto& note : report.notes) text += fmt::format("  {}\n", printable(note));
    return text;
}

std::string render_inhibition(const Process& process, const Report& report) {
    return fmt::format("{} {}: {}\n", process.pid, label(process, report), inhibition_line(report));
}

std::string render_reasons(const Process& process, const Report& report,
                           const std::vector<std::string>& against) {
    auto text = fmt::format("{} {}: {} {}\n", process.pid, label(process, report), words_for(report),
                            format_seconds(report.state_seconds));
    if (!report.idle_seconds)
        text += "  when it was at work last is not known\n";
    else if (*report.idle_seconds == 0)
        text += "  it is at work\n";
    else
        text += fmt::format("  it was at work {} ago\n", format_seconds(*report.idle_seconds));
    Bytes freed = 0;
    Bytes kept = Sums(report).all.kept; // of what sleeps
    for (const auto& device : report.devices) {
        freed += device.released;
        kept += device.kept;
    }
    text += fmt::format("  a sleep would free {}\n", format_bytes(freed));
    for (const auto& reason : against) text += fmt::format("  against it: {}\n", printable(reason));
    if (against.empty()) text += "  nothing stands against it\n";
    for (const auto& note : report.notes) text += fmt::format("  {}\n", printable(note));
    if (report.woken_bytes == 0 || report.woken_seconds <= 0)
        return text + "  how long waking would take is not known: it has not woken yet\n";
    const auto seconds =
        report.woken_seconds * static_cast<double>(kept) / static_cast<double>(report.woken_bytes);
    return text + fmt::format("  waking would take {} for {}, as fast as last time ({} in {})\n",
                              format_seconds(seconds), format_bytes(kept), format_bytes(report.woken_bytes),
                              format_seconds(report.woken_seconds));
}

std::string render_listing(const std::vector<Outcome>& outcomes, Detail detail) {
    Table table({{"PID", k_right},
                 {"USER", k_left},
                 {"NAME", k_left},
                 {"STATE", k_left},
                 {"TAG", k_left},
                 {"DEVICE", k_left},
                 {"BYTES", k_right},
                 {"WHERE", k_left},
                 {"POLICY", k_left}});
    for (const auto& outcome : outcomes) {
        const auto& process = outcome.process;
        const auto* const report = std::get_if<Report>(&outcome.answer);
        if (report && outcome.by_driver)
            add_without_agent(table, process, *report);
        else if (report)
            add_process(table, process, *report, detail);
        else
            table.add({std::to_string(process.pid), user_name(process.uid),
                       shortened(process.command, k_label_columns), "no answer"});
    }
    return table.text();
}

std::string render_error(std::string_view program, std::string_view purpose, const Error& error,
                         bool has_waited) {
    auto text = fmt::format("{}: ", program);
    if (!purpose.empty()) text += fmt::format("cannot {}: ", purpose);
    text += error.message;
    if (const auto advice = advice_from(program, error.code, has_waited); !advice.empty())
        text += fmt::format("; {}", advice);
    return printable(text) + '\n';
}

Error without(const std::string& subject, Error error) {
    auto& message = error.message;
    if (message.starts_with(subject + ": ")) message.erase(0, subject.size() + 2);
    const auto again = "process " + subject;
    for (auto at = message.find(again); at != std::string::npos; at = message.find(again, at))
        message.replace(at, again.size(), "it");
    return error;
}

} // namespace gpu_sleep::cli
