// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A copy of the built programs that every user of the machine may run.

#pragma once

#include "host.hpp"

#include <string>

namespace gpu_sleep::test {

/// A temporary directory with the commands, the host program and its libraries; removed at the end.
class Stage {
public:
    Stage();
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;
    ~Stage();

    /// The file of a program or library.
    [[nodiscard]] std::string file(const std::string& name) const { return directory_ + "/" + name; }
    /// Starts the host program by `prefix`.
    [[nodiscard]] Launch launch(Arguments prefix) const;

private:
    std::string directory_;
};

} // namespace gpu_sleep::test
