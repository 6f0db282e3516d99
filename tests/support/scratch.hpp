// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A directory for the files of one test.

#pragma once

#include "support/catch.hpp"

#include <cstdlib>
#include <filesystem>
#include <string>

namespace gpu_sleep::test {

/// Made empty under `parent`, and removed with all that is in it at the end.
class Scratch {
public:
    explicit Scratch(const std::string& parent = "/tmp") {
        auto name = parent + "/gpu-sleep-scratch-XXXXXX";
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

private:
    std::filesystem::path path_;
};

} // namespace gpu_sleep::test
