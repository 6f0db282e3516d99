// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One line for each process.

#include "cli/show/render.hpp"

#include "base/files.hpp"
#include "base/text.hpp"
#include "cli/show/table.hpp"

#include <fmt/ranges.h>

#include <tuple>

namespace gpu_sleep::cli {
namespace {

using model::Report;
using model::State;

/// The figures of a process, by which rows can be sorted.
struct Row {
    std::string name;
    std::string origin; ///< where others have the same name
    std::string state;
    std::string reason; ///< why it waits
    std::optional<double> idle;
    Bytes gpu = 0;
    Bytes host = 0;
    Bytes retained = 0; ///< of that
    Bytes files = 0;
    bool is_asleep = false;
    bool is_lost = false;
    bool answers = false;
};

std::string short_state(const Report& report) {
    if (report.lost) return "lost";
    if (!report.wakes_waiting.empty()) return "waits"; // for room to wake
    if (report.state == State::awake && report.inhibited) return "inhibited";
    if (report.state == State::asleep && report.deep) return "deep";
    return std::string(word_of(report.state, {"awake", "asleep", "partly", "damaged", "paused"}));
}

Row row_of(const control::Outcome& outcome) {
    Row row;
    row.name = display_name(outcome.process);
    row.state = silence(outcome);
    const auto* const report = std::get_if<Report>(&outcome.answer);
    if (!report) return row;
    row.answers = true;
    row.state = outcome.by_driver && report->state == State::awake ? "no agent" : short_state(*report);
    if (outcome.stopped_report_seconds) row.state = "stopped, " + row.state;
    row.is_lost = report->lost;
    row.is_asleep = !model::is_resident(report->state) && !row.is_lost;
    if (!report->name.empty()) row.name = report->name;
    if (!report->wakes_waiting.empty() && !row.is_lost) row.reason = report->wakes_waiting.front().reason;
    row.idle = report->idle_seconds;
    row.retained = report->retained_bytes;
    row.host = report->host_bytes + report->retained_bytes;
    for (const auto& tag : report->tags) {
        row.gpu += tag.resident;
        row.host += tag.host_backed;
    }
    if (outcome.by_driver)
        for (const auto& device : report->devices) row.gpu += device.released;
    row.files = report->file_bytes;
    return row;
}

/// "45s", "14m", "2h05m", "3d04h": six columns at most, for a thousand days.
std::string short_time(std::optional<double> seconds) {
    constexpr std::uint64_t k_minute = 60;
    constexpr std::uint64_t k_hour = 60 * k_minute;
    constexpr std::uint64_t k_day = 24 * k_hour;
    if (!seconds) return "-";
    const auto count = static_cast<std::uint64_t>(*seconds);
    if (count < k_minute) return fmt::format("{}s", count);
    if (count < k_hour) return fmt::format("{}m", count / k_minute);
    if (count < k_day) return fmt::format("{}h{:02}m", count / k_hour, count % k_hour / k_minute);
    return fmt::format("{}d{:02}h", count / k_day, count % k_day / k_hour);
}

std::string size(Bytes bytes) {
    return bytes == 0 ? "-" : format_bytes(bytes);
}

std::string summary(const std::vector<Row>& rows) {
    Row sum;
    std::size_t asleep = 0;
    std::size_t lost = 0;
    std::size_t silent = 0;
    for (const auto& row : rows) {
        sum.gpu += row.gpu;
        sum.host += row.host;
        sum.retained += row.retained;
        sum.files += row.files;
        asleep += row.is_asleep ? 1 : 0;
        lost += row.is_lost ? 1 : 0;
        silent += row.answers ? 0 : 1;
    }
    auto text = fmt::format("{} processes, {} asleep", rows.size(), asleep);
    if (rows.size() == 1) text = fmt::format("1 process, {} asleep", asleep);
    if (lost != 0) text += fmt::format(", {} lost", lost);
    if (silent != 0) text += fmt::format(", {} without an answer", silent);
    text += fmt::format("; GPU {}, host {}", format_bytes(sum.gpu), format_bytes(sum.host));
    if (sum.retained != 0)
        text += fmt::format(" ({} retained for the next sleep)", format_bytes(sum.retained));
    if (sum.files != 0) text += fmt::format(", files {}", format_bytes(sum.files));
    return text;
}

/// "GPU 0: 60.0 GiB used, 20.0 GiB free; llama 40.0 GiB, 911 19.0 GiB", the largest holder first.
std::string line_of(const driver::Gpu& gpu, const std::vector<control::Outcome>& outcomes,
                    const std::vector<Row>& rows) {
    auto text = fmt::format("GPU {}: {} used, {} free", gpu.index, format_bytes(gpu.total - gpu.free),
                            format_bytes(gpu.free));
    auto holders = gpu.processes;
    std::ranges::stable_sort(holders, std::greater(), &driver::GpuProcess::bytes);
    for (const auto& holder : holders) {
        auto name = std::to_string(holder.pid);
        for (std::size_t i = 0; i < rows.size(); ++i)
            if (outcomes[i].process.pid == holder.pid) name = rows[i].name;
        text += fmt::format("{}{} {}", &holder == holders.data() ? "; " : ", ", name,
                            holder.bytes ? format_bytes(*holder.bytes) : "?");
    }
    return text;
}

/// The most columns of what gives way, and which process has a mark.
struct Widths {
    std::size_t name = 0;
    std::size_t origin = 0;
    std::size_t reason = 0;
    std::optional<pid_t> chosen{};
};

Table table_of(const std::vector<control::Outcome>& outcomes, const std::vector<Row>& rows, Widths widths) {
    constexpr std::size_t k_user_columns = 8;
    const bool has_origins = std::ranges::any_of(rows, [](const Row& row) { return !row.origin.empty(); });
    const bool has_files = std::ranges::any_of(rows, [](const Row& row) { return row.files != 0; });
    std::vector<std::string> headings{">PID", "USER", "NAME", "STATE", ">IDLE", ">GPU", ">HOST"};
    if (has_origins) headings.insert(headings.begin() + 3, "FROM"); // behind the name
    if (has_files) headings.emplace_back(">FILES");
    Table table(std::move(headings));
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto& row = rows[i];
        const auto& process = outcomes[i].process;
        std::vector<std::string> cells{(process.pid == widths.chosen ? ">" : "") +
                                           std::to_string(process.pid),
                                       shortened(control::user_name(process.uid), k_user_columns),
                                       shortened(row.name, widths.name),
                                       row.state,
                                       short_time(row.idle),
                                       size(row.gpu),
                                       size(row.host)};
        if (has_origins) cells.insert(cells.begin() + 3, shortened(row.origin, widths.origin));
        if (has_files) cells.push_back(size(row.files));
        table.add(std::move(cells));
        // Who has the memory stands behind a semicolon, and has a line of its own.
        std::string_view words = "waits: ";
        for (std::string_view left = row.reason; !left.empty(); words = "  ") {
            const auto part = left.substr(0, left.find("; "));
            table.add_line(shortened(fmt::format("{}{}", words, part), widths.reason));
            left.remove_prefix(std::min(part.size() + 2, left.size()));
        }
    }
    return table;
}

} // namespace

void sort(std::vector<control::Outcome>& outcomes, std::string_view order) {
    using Key = std::tuple<bool, double, std::string, pid_t>;
    const auto key_of = [order](const control::Outcome& outcome) {
        const auto row = row_of(outcome);
        const double figure = order == "gpu"    ? static_cast<double>(row.gpu)
                              : order == "host" ? static_cast<double>(row.host)
                              : order == "idle" ? row.idle.value_or(-1)
                                                : 0;
        return Key(!row.answers, -figure, order == "name" ? row.name : "", outcome.process.pid);
    };
    std::ranges::sort(outcomes, {}, key_of);
}

std::optional<pid_t> choose(const std::vector<control::Outcome>& outcomes, std::optional<pid_t> chosen,
                            char key) {
    if (outcomes.empty()) return chosen;
    const auto at =
        std::ranges::find_if(outcomes, [&](const auto& each) { return each.process.pid == chosen; });
    if (at == outcomes.end()) return outcomes.front().process.pid;
    const bool is_at_end = key == 'j' ? at + 1 == outcomes.end() : at == outcomes.begin();
    return is_at_end ? chosen : (key == 'j' ? at + 1 : at - 1)->process.pid;
}

std::string scrolled(std::string_view text, std::size_t room) {
    std::vector<std::string_view> lines;
    while (const auto line = take_line(text)) lines.push_back(*line);
    const auto is_chosen = [](std::string_view line) {
        return line.substr(std::min(line.find_first_not_of(' '), line.size())).starts_with('>');
    };
    const auto titles = std::ranges::find(lines, "");
    const auto chosen = std::ranges::find_if(lines, is_chosen);
    const auto first = std::min<std::size_t>(titles - lines.begin() + 2, lines.size());
    constexpr std::size_t k_below = 3; // the next one, and the keys
    const auto last = std::max(room, first + k_below) - k_below;
    const auto at = static_cast<std::size_t>(chosen - lines.begin());
    if (chosen != lines.end() && at > last)
        lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(first),
                    lines.begin() + static_cast<std::ptrdiff_t>(first + at - last));
    return fmt::format("{}\n", fmt::join(lines, "\n"));
}

std::string render_live(const std::vector<control::Outcome>& outcomes, std::size_t columns,
                        const std::vector<driver::Gpu>& gpus, std::optional<pid_t> chosen) {
    constexpr std::size_t k_least = 8;
    constexpr std::size_t k_most = 64;
    std::vector<Row> rows;
    rows.reserve(outcomes.size());
    std::map<std::string, std::size_t> counts;
    for (const auto& outcome : outcomes) {
        rows.push_back(row_of(outcome));
        ++counts[rows.back().name];
    }
    for (std::size_t i = 0; i < rows.size(); ++i)
        if (counts[rows[i].name] > 1) rows[i].origin = to_word(outcomes[i].process.origin);
    constexpr std::size_t k_before_reason = 10; // a pid with its mark
    Widths widths{k_most, k_most, std::max(columns, k_before_reason + k_least) - k_before_reason, chosen};
    auto table = table_of(outcomes, rows, widths).text();
    for (const auto& [width, text] :
         {std::pair(&Widths::origin, &Row::origin), std::pair(&Widths::name, &Row::name)}) {
        std::size_t all = 0; // columns of the longest line
        for (std::string_view left = table; const auto line = take_line(left);)
            all = std::max(all, width_of(*line));
        if (all <= columns) break;
        std::size_t longest = 0;
        for (const auto& row : rows) longest = std::max(longest, width_of(shortened(row.*text, k_most)));
        widths.*width = std::max(longest - std::min(all - columns, longest), k_least);
        table = table_of(outcomes, rows, widths).text();
    }
    auto text = shortened(summary(rows), columns) + "\n";
    for (const auto& gpu : gpus) text += shortened(line_of(gpu, outcomes, rows), columns) + "\n";
    return text + "\n" + table;
}

} // namespace gpu_sleep::cli
