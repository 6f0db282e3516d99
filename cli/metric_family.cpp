// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Samples line by line.

#include "cli/metric_family.hpp"

#include "base/text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace gpu_sleep::cli {
namespace {

std::string heading(std::string_view name, std::string_view type, std::string_view help) {
    return fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

template <class T>
std::string sample(std::string_view name, const Labels& labels, T value) {
    return fmt::format("{}{{{}}} {}\n", name, labels.text(), value);
}

} // namespace

Labels Labels::with(std::string_view name, std::string_view value) const {
    Labels more = *this;
    more.text_ += fmt::format("{}{}=\"", text_.empty() ? "" : ",", name);
    for (const char c : printable(value)) { // which has no newline any more
        if (c == '\\' || c == '"') more.text_ += '\\';
        more.text_ += c;
    }
    more.text_ += '"';
    return more;
}

void Family::raise(const Labels& labels, double value) {
    const auto [sample, is_new] = samples_.emplace(labels, value);
    if (!is_new) sample->second = std::max(sample->second, value);
}

std::string Family::text() const {
    auto text = heading(name_, type_, help_);
    for (const auto& [labels, value] : samples_) text += sample(name_, labels, value);
    return text;
}

void HistogramFamily::add(const Labels& labels, const model::TransitionCounts& counts) {
    auto& times = histograms_[labels];
    for (std::size_t i = 0; i < counts.done.size(); ++i) times.counts[i] += counts.done[i];
    times.seconds += counts.done_seconds;
}

std::string HistogramFamily::text() const {
    auto text = heading(name_, "histogram", help_);
    const auto part = [this](std::string_view suffix) { return fmt::format("{}_{}", name_, suffix); };
    for (const auto& [labels, times] : histograms_) {
        std::uint64_t count = 0; // each bucket has those below it, too
        for (std::size_t i = 0; i < times.counts.size(); ++i) {
            count += times.counts[i];
            const bool is_bounded = i < model::k_duration_bounds.size();
            const auto bound = is_bounded ? fmt::format("{}", model::k_duration_bounds[i]) : "+Inf";
            text += sample(part("bucket"), labels.with("le", bound), count);
        }
        text += sample(part("sum"), labels, times.seconds);
        text += sample(part("count"), labels, count);
    }
    return text;
}

} // namespace gpu_sleep::cli
