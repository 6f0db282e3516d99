// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A copy of the built programs that every user of the machine may run.

#pragma once

#include "support/host.hpp"

namespace gpu_sleep::test {

/// A temporary directory with the commands, the host program and its libraries; removed at the end.
class Stage {
public:
    Stage();

    /// The file of a program or library.
    [[nodiscard]] std::string file(const std::string& name) const { return directory_.file(name); }
    /// Starts the host program by `prefix`.
    [[nodiscard]] Launch launch(Arguments prefix) const;

private:
    Scratch directory_{"/tmp"}; // which every user can reach
};

} // namespace gpu_sleep::test
