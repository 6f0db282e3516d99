// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The members of JSON that a manual page names, and those of a document, to be compared.

#pragma once

#include <nlohmann/json.hpp>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace gpu_sleep::test {

/// By the title of the subsection that is about their object.
using Members = std::map<std::string, std::set<std::string>>;

/// What the section JSON of a page has as terms (.TP).
inline Members documented_members(const std::filesystem::path& page) {
    Members members;
    std::ifstream file(page);
    std::string section, title;
    bool is_term = false;
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with(".SH ")) section = line.substr(4);
        if (line.starts_with(".SS ")) title = line.substr(4);
        if (section == "JSON" && is_term) {
            std::string word;
            for (const char c : line.substr(line.find(' ')) + ' ') {
                if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_')
                    word += c;
                else if (!word.empty())
                    members[title].insert(std::exchange(word, {}));
            }
        }
        is_term = line == ".TP";
    }
    return members;
}

/// Adds those of `object`, which `title` is about, and of the objects within.
inline void add_members(const nlohmann::json& object, const std::string& title, Members& members) {
    for (const auto& [key, value] : object.items()) {
        members[title].insert(key);
        const auto within = key == "processes" ? "A process" : key == "snapshots" ? "A snapshot" : key;
        if (value.is_object()) add_members(value, within, members);
        if (!value.is_array()) continue;
        for (const auto& item : value)
            if (item.is_object()) add_members(item, within, members);
    }
}

} // namespace gpu_sleep::test
