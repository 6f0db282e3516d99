// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The states of processes in words and lines that several outputs share, the long listing of gpu-ps, and its
// history.

#include "cli/show/render.hpp"

#include "base/text.hpp"
#include "cli/show/table.hpp"

#include <fmt/ranges.h>

#include <ctime>
#include <iterator>

namespace gpu_sleep::cli {

using model::GateState;
using model::OnTouch;
using model::Report;
using model::State;

namespace {

std::string_view words_for(OnTouch on_touch) noexcept {
    return word_of(on_touch, {"waits", "wakes the process", "fails"});
}

std::string_view words_for(GateState gate) noexcept {
    return word_of(gate, {"open; once asleep, work on the GPU", "checked: work that names a sleeping address",
                          "shut: work on the GPU"});
}

using model::Operation;
using model::TagReport;

/// "GPU", or "GPU 2.00 GiB, host 13.0 GiB" when the bytes are in several places.
std::string where(const TagReport& tag) {
    using Place = std::pair<std::string_view, Bytes>;
    std::vector<Place> places{{"GPU", tag.resident}, {"host (running)", tag.host_backed}};
    for (const auto store : model::k_stores)
        places.emplace_back(model::to_string(store), model::kept_in(tag, store));
    places.emplace_back("dropped", tag.dropped);
    places.emplace_back("damaged", tag.damaged);
    std::erase_if(places, [](const Place& place) { return place.second == 0; });
    std::vector<std::string> words;
    words.reserve(places.size());
    for (const auto& [name, bytes] : places)
        words.push_back(places.size() == 1 ? std::string(name)
                                           : fmt::format("{} {}", name, format_bytes(bytes)));
    return fmt::format("{}{}", fmt::join(words, ", "), tag.needs_refill ? " (zeros: needs refill)" : "");
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
            for (const auto figure :
                 {&TagReport::bytes, &TagReport::resident, &TagReport::host_backed, &TagReport::kept,
                  &TagReport::in_files, &TagReport::dropped, &TagReport::damaged})
                all.*figure += tag.*figure;
            all.needs_refill = all.needs_refill || tag.needs_refill;
        }
    }
};

/// "awake 2 h 5 min, idle 14 min 3 s", once it has been idle for a while.
std::string state_column(const Report& report) {
    constexpr double k_least_idle = 60;
    const auto state = fmt::format("{} {}", state_words(report), format_seconds(report.state_seconds));
    const bool may_work = report.state == State::awake || report.state == State::partial;
    const auto idle = report.idle_seconds.value_or(0);
    return may_work && idle >= k_least_idle ? fmt::format("{}, idle {}", state, format_seconds(idle)) : state;
}

void add_origin(Table& table, const control::Process& process) {
    if (const auto text = to_text(process.origin); !text.empty()) table.add_line(text);
}

/// Of one that has no agent: its GPUs in one line, for it has no tags.
void add_without_agent(Table& table, const control::Process& process, const Report& report) {
    const auto bytes = report.devices.empty() ? report.host_bytes : released(report);
    table.add({std::to_string(process.pid), control::user_name(process.uid), label(process, report),
               std::string(state_words(report)), "-",
               report.devices.empty() ? "-" : counted(report.devices.size(), "GPU"),
               bytes == 0 ? "-" : format_bytes(bytes), report.devices.empty() ? "host" : "GPU"});
    add_origin(table, process);
    for (const auto& note : report.notes) table.add_line(note);
}

/// `bytes` are NVML's: amid a wake, of which agents do not tell, some of them are contents.
std::string use_line(Bytes bytes) {
    if (bytes == 0) return "it has nothing left on the GPUs";
    return fmt::format(
        "still on the GPUs: {} (contexts, modules, residual memory; during a wake, also contents)",
        format_bytes(bytes));
}

/// "2nd".
std::string ordinal(std::uint32_t number) {
    constexpr std::uint32_t k_ten = 10;
    constexpr std::string_view k_ends[] = {"th", "st", "nd", "rd"};
    const bool is_teen = number / k_ten % k_ten == 1;
    const auto last = number % k_ten;
    return fmt::format("{}{}", number, k_ends[is_teen || last >= std::size(k_ends) ? 0 : last]);
}

/// "a wake of weights has waited 12.50 s for GPU memory: waking needs 32.0 MiB on GPU 0, ...", or "for room,
/// 2nd in the queue".
std::string waiting_line(const model::WaitingWake& wake) {
    const auto what = wake.place == 0 ? std::string("GPU memory")
                                      : fmt::format("room, {} in the queue", ordinal(wake.place));
    auto text = fmt::format("a wake of {} has waited {} for {}",
                            wake.tags.empty() ? "all tags" : cli::joined(wake.tags),
                            format_seconds(wake.seconds), what);
    return wake.reason.empty() ? text : text + fmt::format(": {}", printable(wake.reason));
}

bool is_noted(const Report& report, const std::string& reason) {
    return std::ranges::any_of(report.notes,
                               [&](const std::string& note) { return note.find(reason) != note.npos; });
}

void add_process(Table& table, const control::Outcome& outcome, const Report& report, Detail detail,
                 double link_rate) {
    const auto& process = outcome.process;
    const Sums sums(report);
    table.add({std::to_string(process.pid), control::user_name(process.uid), label(process, report),
               (outcome.stopped_report_seconds ? "stopped, " : "") + state_column(report),
               counted(sums.tags.size(), "tag"), counted(sums.devices.size(), "GPU"),
               format_bytes(sums.all.bytes), where(sums.all)});
    for (const auto& tag : report.tags)
        table.add({"", "", "", std::string(state_words(tag.state)), tag.tag,
                   fmt::format("GPU {}", tag.device), format_bytes(tag.bytes), where(tag), policy(tag)});
    add_origin(table, process);
    if (!report.group.empty()) table.add_line("group " + report.group);
    if (report.intercepts || report.gate != GateState::open || report.touches != 0)
        table.add_line(gate_line(report));
    if (sums.all.host_backed != 0 && link_rate > 0)
        table.add_line(fmt::format("runs from host memory: reading it once over PCIe takes at least {}",
                                   format_seconds(static_cast<double>(sums.all.host_backed) / link_rate)));
    if (report.inhibited) table.add_line(inhibition_line(report));
    if (report.retained_bytes != 0) table.add_line(retained_line(report));
    for (const auto& residual : report.residual) table.add_line(residual_line(residual));
    if (!report.sharers.empty())
        table.add_line(fmt::format("shares memory with {}", fmt::join(report.sharers, ", ")));
    if (report.deep) table.add_line(deep_line(report));
    if (report.state == State::damaged) table.add_line(damaged_line(process));
    if (outcome.gpu_bytes) table.add_line(use_line(*outcome.gpu_bytes));
    if (detail == Detail::all && !report.deep_refusal.empty())
        table.add_line("cannot sleep deeply" +
                       (is_noted(report, report.deep_refusal) ? std::string() : ": " + report.deep_refusal));
    for (auto wake : report.wakes_waiting) {
        if (wake.by_touch && wake.place == 0) continue; // a note tells
        if (is_noted(report, wake.reason)) wake.reason.clear();
        table.add_line(waiting_line(wake));
    }
    if (report.operation == Operation::status)
        for (const auto& note : report.notes) table.add_line(note);
}

std::string local_time(double time) {
    const auto seconds = static_cast<std::time_t>(time);
    std::tm parts{};
    std::array<char, sizeof "2026-11-29 22:00:00"> text{};
    ::localtime_r(&seconds, &parts);
    return {text.data(), std::strftime(text.data(), text.size(), "%F %T", &parts)};
}

/// Where the contents of what sleeps are.
std::string place(const model::Event& event) {
    if (event.level == model::Level::pause) return "pause";
    return (event.place == "none" ? "dropped" : event.place) + (event.deep ? ", deep" : "");
}

} // namespace

std::string_view state_words(State state) noexcept {
    return word_of(state, {"awake", "asleep", "partly asleep", "asleep, damaged", "paused"});
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
    return std::ranges::any_of(
        report.devices, [](const auto& device) { return device.released > 0 || device.relocated > 0; });
}

Bytes released(const Report& report) {
    return model::sum_of(report.devices, &model::DeviceReport::released);
}

std::string render_listing(const std::vector<control::Outcome>& outcomes, Detail detail, double link_rate) {
    Table table({">PID", "USER", "NAME", "STATE", "TAG", "DEVICE", ">BYTES", "WHERE", "POLICY"});
    for (const auto& outcome : outcomes) {
        const auto& process = outcome.process;
        const auto* const report = std::get_if<Report>(&outcome.answer);
        if (report && outcome.by_driver)
            add_without_agent(table, process, *report);
        else if (report)
            add_process(table, outcome, *report, detail, link_rate);
        else
            table.add({std::to_string(process.pid), control::user_name(process.uid),
                       shortened(display_name(process), k_label_columns), silence(outcome)});
    }
    return table.text();
}

std::string render_history(const std::vector<model::Event>& events, double gib_hours) {
    Table table({"TIME", "USER", ">PID", "NAME", "WHAT", "PLACE", ">SIZE", ">ASLEEP", "ASKED BY"});
    for (const auto& event : events) {
        const bool is_wake = event.transition == model::Transition::wake;
        const bool is_own =
            event.asker_uid == event.uid &&
            (event.asked_by == "touch" || event.asked_by == "timer" || event.asked_by == "program");
        const auto origin = control::to_word({event.notebook, {}, event.job, {}});
        table.add({local_time(event.time), control::user_name(event.uid), std::to_string(event.pid),
                   origin.empty() ? event.name : fmt::format("{} ({})", event.name, origin),
                   std::string(model::to_string(event.transition)), is_wake ? "" : place(event),
                   format_bytes(event.bytes), is_wake ? format_seconds(event.asleep_seconds) : "",
                   (is_own ? "" : control::user_name(event.asker_uid) + ": ") + event.asked_by});
    }
    return events.empty() ? "no sleep and no wake is recorded for this time\n"
                          : table.text() + fmt::format("{:.{}f} GiB hours given back\n", gib_hours,
                                                       gib_hours < 1 ? 3 : 1);
}

} // namespace gpu_sleep::cli
