// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What lies in a file or a directory, and damage to it.

#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace gpu_sleep::test {

/// What can be read of a file; nothing where there is none. The file of a process that ends meanwhile throws
/// nothing, as an iterator over its stream would.
[[nodiscard]] inline std::string content_of(const std::filesystem::path& file) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return std::move(text).str();
}

/// The files in `directory` in the order of their names; none where there is no such directory.
[[nodiscard]] inline std::vector<std::filesystem::path> files_in(const std::filesystem::path& directory) {
    std::vector<std::filesystem::path> files;
    std::error_code ignored;
    for (const auto& file : std::filesystem::directory_iterator(directory, ignored)) files.push_back(file);
    std::sort(files.begin(), files.end());
    return files;
}

/// The endings of their names.
[[nodiscard]] inline std::multiset<std::string> endings_in(const std::filesystem::path& directory) {
    std::multiset<std::string> endings;
    for (const auto& file : files_in(directory)) endings.insert(file.extension());
    return endings;
}

/// Turns a bit in the middle of a file, or turns it back.
inline void turn_a_bit(const std::filesystem::path& file) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(file) / 2);
    stream.seekg(middle);
    const auto byte = static_cast<char>(stream.get() ^ 0x40);
    stream.seekp(middle);
    stream.put(byte);
}

/// The same in every file.
inline void turn_a_bit_in_each(const std::filesystem::path& directory) {
    for (const auto& file : files_in(directory)) turn_a_bit(file);
}

} // namespace gpu_sleep::test
