// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Configurations for gpu-reclaim --config.

#pragma once

#include "support/catch.hpp"
#include "support/process.hpp"

namespace gpu_sleep::test {

/// A file with this text, as long as it lives.
class Configuration {
public:
    explicit Configuration(const std::string& text) {
        std::ofstream(file()) << text;
        REQUIRE(::chmod(file().c_str(), 0644) == 0);
    }
    [[nodiscard]] std::string file() const { return scratch_.file("gpu-sleep.toml"); }

private:
    Scratch scratch_;
};

/// Whether this build reads configurations.
[[nodiscard]] inline bool reads_configurations() {
    const Configuration empty("");
    return run({{command_file("gpu-reclaim"), "--config", empty.file(), "999999999"}}).status == 3;
}

} // namespace gpu_sleep::test
