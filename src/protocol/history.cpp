// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Writing and reading lines of the history.

#include "protocol/history.hpp"

#include "base/text.hpp"
#include "protocol/fields.hpp"

#include <fmt/format.h>

namespace gpu_sleep::protocol {
namespace {

constexpr std::size_t k_longest_text = 120;
constexpr std::string_view k_begin = "1"; ///< the version of the form

std::string text_of(const std::string& text) {
    return printable(std::string_view(text).substr(0, k_longest_text));
}
std::string text_of(double seconds) {
    return fmt::format("{:.3f}", seconds);
}
template <class T>
std::string text_of(T number) {
    return std::to_string(static_cast<std::uint64_t>(number));
}

bool read(std::string_view text, std::string& value) {
    value = text;
    return text.size() <= k_longest_text && text == printable(text);
}
bool read(std::string_view text, double& seconds) {
    constexpr double k_most = 1e10;
    seconds = parse_number<double>(text).value_or(-1);
    return seconds >= 0 && seconds <= k_most;
}
template <class T>
bool read(std::string_view text, T& value) {
    std::uint64_t most = std::uint64_t{1} << 53;
    if constexpr (std::is_enum_v<T>)
        most = k_last<T>;
    else
        most = std::min<std::uint64_t>(most, std::numeric_limits<T>::max());
    const auto number = parse_number<std::uint64_t>(text);
    value = static_cast<T>(number.value_or(0));
    return number && *number <= most;
}

} // namespace

std::string line_of(const model::Event& event) {
    std::string line(k_begin);
    fields(event)([&](const auto&... field) { ((line += '\t' + text_of(field.value)), ...); });
    return line + '\n';
}

std::optional<model::Event> parse_event(std::string_view line) {
    const auto next = [&] {
        const auto part = line.substr(0, line.find('\t'));
        line.remove_prefix(std::min(part.size() + 1, line.size()));
        return part;
    };
    const auto tabs = std::count(line.begin(), line.end(), '\t');
    model::Event event;
    const bool is_read = next() == k_begin && fields(event)([&](const auto&... field) {
                             return tabs == sizeof...(field) && (read(next(), field.value) && ...);
                         });
    return is_read ? std::optional(std::move(event)) : std::nullopt;
}

} // namespace gpu_sleep::protocol
