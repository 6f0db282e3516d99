// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Lining up columns.

#include "cli/show/table.hpp"

#include "base/text.hpp"

#include <algorithm>

namespace gpu_sleep::cli {

void Table::add(std::vector<std::string> cells) {
    for (auto& cell : cells) cell = printable(cell);
    rows_.push_back(std::move(cells));
}

void Table::add_line(std::string_view text) {
    rows_.push_back({std::string(), printable(text)});
    spanning_.insert(rows_.size() - 1);
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
