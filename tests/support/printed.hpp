// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a command prints for people, read by meaning: the cells of its table by the titles of their columns,
// and the sentences beside it. How a table is laid out is for the two goldens of render_test.cpp.

#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace gpu_sleep::test {

class Printed {
public:
    /// Cells that are not empty, by the titles of their columns.
    using Row = std::map<std::string, std::string>;

    /// A line of capital letters has the titles of the columns below it; `text` may have no table at all.
    explicit Printed(const std::string& text) {
        std::istringstream stream(text);
        std::vector<Piece> titles;
        for (std::string line; std::getline(stream, line);) {
            const auto pieces = pieces_of(line);
            if (is_title(line))
                titles = pieces;
            else if (!add_row(pieces, titles))
                sentences.push_back(line.substr(std::min(line.find_first_not_of(' '), line.size())));
        }
    }

    std::vector<Row> rows;
    std::vector<std::string>
        lines; ///< the same rows, each as "TITLE cell; TITLE cell", in the order of columns
    std::vector<std::string> sentences;

private:
    /// Words of a line that no two spaces part.
    struct Piece {
        std::size_t begin, end;
        std::string text;
    };

    static std::vector<Piece> pieces_of(const std::string& line) {
        std::vector<Piece> pieces;
        for (std::size_t at = line.find_first_not_of(' '); at < line.size();) {
            const auto end = std::min(line.find("  ", at), line.size());
            pieces.push_back({at, end, line.substr(at, end - at)});
            at = line.find_first_not_of(' ', end);
        }
        return pieces;
    }
    static bool is_title(const std::string& line) {
        return line.find("  ") != std::string::npos && std::all_of(line.begin(), line.end(), [](char c) {
                   return c == ' ' || c == '/' || (c >= 'A' && c <= 'Z');
               });
    }
    /// Each piece begins or ends where its title does, and a row has several. False unless that holds.
    bool add_row(const std::vector<Piece>& pieces, const std::vector<Piece>& titles) {
        Row row;
        std::string words;
        if (pieces.size() < 2) return false;
        for (const auto& piece : pieces) {
            const auto title = std::find_if(titles.begin(), titles.end(), [&](const Piece& each) {
                return each.begin == piece.begin || each.end == piece.end;
            });
            if (title == titles.end()) return false;
            row[title->text] = piece.text;
            words += (words.empty() ? "" : "; ") + title->text + ' ' + piece.text;
        }
        rows.push_back(std::move(row));
        lines.push_back(std::move(words));
        return true;
    }
};

} // namespace gpu_sleep::test
