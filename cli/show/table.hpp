// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Columns of text that line up.

#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::cli {

/// Rows of cells under headings, each column as wide as its widest cell. Cells may come from other users, so
/// they are made printable.
class Table {
public:
    /// '>' before a heading has its column aligned to the right.
    explicit Table(std::vector<std::string> headings);

    /// Adds a row; cells that are missing at its end are empty.
    void add(std::vector<std::string> cells);

    /// Adds a line of text that starts in the second column and widens none.
    void add_line(std::string_view text);

    /// All lines, each begun with `indent` spaces and ended by a newline; nothing is left at the ends of
    /// lines.
    [[nodiscard]] std::string text(std::size_t indent = 0) const;

private:
    std::vector<bool> is_right_;                 ///< of each column
    std::vector<std::vector<std::string>> rows_; ///< the headings first
    std::set<std::size_t> spanning_;             ///< of rows_, those that are lines
};

} // namespace gpu_sleep::cli
