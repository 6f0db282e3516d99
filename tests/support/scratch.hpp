// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A directory for the files of one test: the one way in which tests get one.

#pragma once

#include "support/catch.hpp"

#include <iterator>

namespace gpu_sleep::test {

/// Made empty under `parent`, with mode 0700, and removed with all that is in it at the end.
class Scratch {
public:
    explicit Scratch(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
        auto name = (parent / "gpu-sleep-test-XXXXXX").string();
        REQUIRE(::mkdtemp(name.data()) != nullptr);
        path_ = name;
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }

    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
    [[nodiscard]] std::string file(const std::string& name) const { return path_ / name; }
    /// How many files and directories are in it.
    [[nodiscard]] std::size_t file_count() const {
        const auto entries = std::filesystem::directory_iterator(path_);
        return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
    }

private:
    std::filesystem::path path_;
};

} // namespace gpu_sleep::test
