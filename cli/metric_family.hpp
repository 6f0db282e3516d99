// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Families of metrics in the text format of Prometheus: what has the same labels is one sample.

#pragma once

#include "model/model.hpp"

#include <concepts>
#include <map>
#include <string>
#include <string_view>

namespace gpu_sleep::cli {

/// The labels of a sample, as they are written between braces.
class Labels {
public:
    /// These and one more. `value` may be a stranger's: it is made printable(), and escaped.
    [[nodiscard]] Labels with(std::string_view name, std::string_view value) const;

    [[nodiscard]] const std::string& text() const noexcept { return text_; }
    friend auto operator<=>(const Labels&, const Labels&) = default;

private:
    std::string text_;
};

/// A gauge or a counter.
class Family {
public:
    Family(std::string_view name, std::string_view type, std::string_view help)
        : name_(name), type_(type), help_(help) {}

    /// Adds to the sample with these labels.
    template <class T>
    void add(const Labels& labels, T value) requires std::integral<T> {
        samples_[labels] += static_cast<double>(value);
    }
    /// Makes the sample with these labels `value` at least.
    void raise(const Labels& labels, double value);

    [[nodiscard]] std::string text() const;

private:
    std::string_view name_;
    std::string_view type_;
    std::string_view help_;
    std::map<Labels, double> samples_;
};

/// How long transitions took that were done.
class HistogramFamily {
public:
    HistogramFamily(std::string_view name, std::string_view help) : name_(name), help_(help) {}

    /// Adds to the histogram with these labels.
    void add(const Labels& labels, const model::TransitionCounts& counts);

    [[nodiscard]] std::string text() const;

private:
    struct Times {
        model::DurationCounts counts{};
        double seconds = 0;
    };

    std::string_view name_;
    std::string_view help_;
    std::map<Labels, Times> histograms_;
};

} // namespace gpu_sleep::cli
