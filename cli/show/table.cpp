// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Lining up columns.

#include "cli/show/table.hpp"

#include "base/text.hpp"

#include <algorithm>

namespace gpu_sleep::cli {

Table::Table(std::vector<std::string> headings) {
    for (auto& heading : headings) {
        is_right_.push_back(heading.starts_with('>'));
        if (is_right_.back()) heading.erase(0, 1);
    }
    rows_.push_back(std::move(headings));
}

void Table::add(std::vector<std::string> cells) {
    for (auto& cell : cells) cell = printable(cell);
    rows_.push_back(std::move(cells));
}

void Table::add_line(std::string_view text) {
    rows_.push_back({std::string(), printable(text)});
    spanning_.insert(rows_.size() - 1);
}

std::string Table::text(std::size_t indent) const {
    std::vector<std::size_t> widths(is_right_.size());
    for (std::size_t row = 0; row < rows_.size(); ++row)
        for (std::size_t i = 0; i < rows_[row].size() && !spanning_.contains(row); ++i)
            widths[i] = std::max(widths[i], width_of(rows_[row][i]));

    std::string text;
    for (const auto& row : rows_) {
        std::string line(indent, ' ');
        for (std::size_t i = 0; i < row.size(); ++i) {
            const std::string padding(widths[i] - std::min(widths[i], width_of(row[i])), ' ');
            line += is_right_[i] ? padding + row[i] : row[i] + padding;
            line += "  ";
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + '\n';
    }
    return text;
}

} // namespace gpu_sleep::cli
