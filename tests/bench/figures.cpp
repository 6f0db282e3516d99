// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table and the JSON of a benchmark.

#include "bench/figures.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>

namespace gpu_sleep::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string with_unit(double value, const std::string& unit) {
    return fmt::format("{:.3g} {}", value, unit);
}

Json to_value(const Figure& figure) {
    Json value{
        {"name", figure.name}, {"unit", figure.unit}, {"value", figure.value()}, {"samples", figure.samples}};
    if (figure.target) {
        value["target"] = *figure.target;
        value["met"] = figure.is_met();
    }
    if (figure.limit) {
        value["limit"] = *figure.limit;
        value["ratio_to_limit"] = figure.value() / *figure.limit;
    }
    return value;
}

Json to_value(const Breakdown& breakdown) {
    Json value{{"name", breakdown.name}, {"seconds", breakdown.whole}};
    for (const auto& [part, seconds] : breakdown.parts) value["parts"][part] = seconds;
    return value;
}

std::string list_of(const std::vector<Breakdown>& breakdowns) {
    std::string text =
        "Where the time goes: seconds of the whole, and of all threads together at each step\n";
    for (const auto& [name, whole, parts] : breakdowns) {
        text += fmt::format("{:<56} {:>8.4f}:", name, whole);
        for (const auto& [part, seconds] : parts)
            if (seconds > whole / 1000) text += fmt::format(" {} {:.4f}", part, seconds); // less is noise
        text += '\n';
    }
    return text;
}

} // namespace

double median(std::vector<double> samples) {
    std::sort(samples.begin(), samples.end());
    const auto middle = samples.size() / 2;
    return samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
}

void Figures::print() const {
    constexpr const char* k_row = "{:<56} {:>12} {:>12} {:>8} {:>10}\n";
    std::string text = fmt::format("{}: {}\n", program_, setting_);
    text += fmt::format(k_row, "", "measured", "at most", "target", "x limit");
    for (const auto& figure : figures_) {
        const auto target = figure.target ? with_unit(*figure.target, figure.unit) : "-";
        const auto* verdict = !figure.target ? "-" : figure.is_met() ? "met" : "MISSED";
        const auto ratio = figure.limit ? fmt::format("{:.2f}", figure.value() / *figure.limit) : "-";
        text +=
            fmt::format(k_row, figure.name, with_unit(figure.value(), figure.unit), target, verdict, ratio);
    }
    if (!breakdowns_.empty()) text += list_of(breakdowns_);
    for (const auto& sentence : notes_) text += fmt::format("Note: {}\n", sentence);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
}

std::optional<double> Figures::value_of(std::string_view name) const {
    for (const auto& figure : figures_)
        if (figure.name == name) return figure.value();
    return std::nullopt;
}

bool Figures::all_met() const {
    return std::all_of(figures_.begin(), figures_.end(), [](const Figure& f) { return f.is_met(); });
}

Result<void> Figures::write_json(const std::string& path) const {
    Json value{{"program", program_}, {"version", GPU_SLEEP_VERSION}, {"setting", setting_}};
    value["figures"] = Json::array();
    for (const auto& figure : figures_) value["figures"].push_back(to_value(figure));
    value["breakdowns"] = Json::array();
    for (const auto& breakdown : breakdowns_) value["breakdowns"].push_back(to_value(breakdown));
    value["notes"] = notes_;
    std::ofstream file(path);
    file << value.dump(2) << '\n';
    file.close();
    if (!file) return errno_error(ErrorCode::io_failed, errno, "write", path);
    return {};
}

int finish(const Figures& figures, const std::string& json_path, bool check) {
    figures.print();
    if (!json_path.empty()) {
        if (const auto written = figures.write_json(json_path); !written) {
            fmt::print(stderr, "{}\n", written.error().message);
            return 1;
        }
    }
    return check && !figures.all_met() ? 1 : 0;
}

} // namespace gpu_sleep::bench
