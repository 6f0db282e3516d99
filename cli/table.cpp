// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Lining up columns.

#include "cli/table.hpp"

#include <algorithm>

namespace gpu_sleep::cli {
namespace {

constexpr bool is_continuation(char byte) noexcept {
    return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

/// Characters, as a terminal counts them; wide ones are counted once.
std::size_t width_of(std::string_view text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

} // namespace

std::string printable(std::string_view text) {
    std::string safe;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0U;
        const bool is_control = byte < 0x20 || byte == 0x7F;
        const bool is_control_beyond_ascii = byte == 0xC2 && next >= 0x80 && next < 0xA0;
        safe += is_control || is_control_beyond_ascii ? '?' : text[i];
        if (is_control_beyond_ascii) ++i;
    }
    return safe;
}

std::string shortened(std::string_view text, std::size_t columns) {
    constexpr std::string_view k_ellipsis = "...";
    auto safe = printable(text);
    if (width_of(safe) <= columns) return safe;
    std::size_t end = 0;
    for (std::size_t kept = 0; end < safe.size(); ++end)
        if (!is_continuation(safe[end]) && kept++ == columns - k_ellipsis.size()) break;
    return safe.substr(0, end).append(k_ellipsis);
}

std::string Table::text(std::size_t indent) const {
    std::vector<std::string> headings;
    for (const auto& column : columns_) headings.push_back(column.heading);
    auto lines = rows_;
    lines.insert(lines.begin(), std::move(headings));
    const auto is_line = [&](std::size_t row) { return row > 0 && spanning_.contains(row - 1); };

    std::vector<std::size_t> widths(columns_.size());
    for (std::size_t row = 0; row < lines.size(); ++row)
        for (std::size_t i = 0; i < lines[row].size() && !is_line(row); ++i)
            widths[i] = std::max(widths[i], width_of(lines[row][i]));

    std::string text;
    for (std::size_t row = 0; row < lines.size(); ++row) {
        std::string line(indent, ' ');
        for (std::size_t i = 0; i < lines[row].size(); ++i) {
            const auto& cell = lines[row][i];
            const auto padding = widths[i] - std::min(widths[i], width_of(cell));
            if (columns_[i].align == Align::right) line.append(padding, ' ');
            line += cell;
            if (columns_[i].align == Align::left) line.append(padding, ' ');
            line += "  ";
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + '\n';
    }
    return text;
}

} // namespace gpu_sleep::cli
