// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking PyTorch for the memory that it keeps unused, before contents are kept.

#pragma once

#include "base/error.hpp"
#include "base/units.hpp"

#include <functional>
#include <memory>

namespace gpu_sleep::agent::torch {

/// For one operation at a time.
class TorchTrim {
public:
    /// Asks PyTorch, and waits for it: not for long, if it has not begun by then, for whoever holds Python's
    /// lock may keep it, and then it is not asked. Once begun it unmaps memory, and no other may sleep
    /// before it is done. Errors: timed_out, cancelled; what has begun goes on, and the next run waits for
    /// it.
    [[nodiscard]] Result<void> run(Clock::time_point deadline, const std::function<bool()>& keep_going);

private:
    struct Work;
    /// On a thread of its own; null when there is none to be had.
    [[nodiscard]] static std::shared_ptr<Work> start();

    std::shared_ptr<Work> begun_; ///< that nobody waited for to the end
};

} // namespace gpu_sleep::agent::torch
