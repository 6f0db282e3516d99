// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of gpu-ps --history.

#include "cli/show/render.hpp"
#include "cli/show/table.hpp"

#include <fmt/format.h>

#include <ctime>

namespace gpu_sleep::cli {
namespace {

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

std::string render_history(const std::vector<model::Event>& events, double gib_hours) {
    using enum Table::Align;
    Table table({{"TIME"},
                 {"USER"},
                 {"PID", right},
                 {"NAME"},
                 {"WHAT"},
                 {"PLACE"},
                 {"SIZE", right},
                 {"ASLEEP", right},
                 {"ASKED BY"}});
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
