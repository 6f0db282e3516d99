// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that runs out inside the agent, and nowhere else.

#pragma once

namespace gpu_sleep::test {

/// While it lives, what the agent allocates on this thread fails once: after so many that succeed. Or fails
/// from then on.
class ShortMemory {
public:
    enum class How : int { once, lasting };

    ShortMemory(long succeed, How how) noexcept;
    ~ShortMemory();
    ShortMemory(const ShortMemory&) = delete;
    ShortMemory& operator=(const ShortMemory&) = delete;

    /// Whether anything has failed.
    [[nodiscard]] static bool has_failed() noexcept;
};

} // namespace gpu_sleep::test
