// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that runs out inside the agent, and nowhere else.

#pragma once

#include "support/not_copied.hpp"

namespace gpu_sleep::test {

/// While it lives, what the agent allocates on this thread, or on all those of a name, fails once: after so
/// many that succeed. Or fails from then on.
class ShortMemory : NotCopied {
public:
    enum class How : int { once, lasting };

    ShortMemory(long succeed, How how, const char* threads = nullptr) noexcept;
    ~ShortMemory();

    /// Whether anything has failed.
    [[nodiscard]] static bool has_failed() noexcept;

private:
    bool is_own_;
};

} // namespace gpu_sleep::test
