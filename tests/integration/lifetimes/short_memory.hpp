// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that runs out inside the agent, and nowhere else.

#pragma once

namespace gpu_sleep::test {

/// While it lives, what the agent allocates on this thread, or on all those of a name, fails once: after so
/// many that succeed. Or fails from then on.
class ShortMemory {
public:
    enum class How : int { once, lasting };

    ShortMemory(long succeed, How how, const char* threads = nullptr) noexcept;
    ~ShortMemory();
    ShortMemory(const ShortMemory&) = delete;
    ShortMemory& operator=(const ShortMemory&) = delete;

    /// Whether anything has failed.
    [[nodiscard]] static bool has_failed() noexcept;

private:
    bool is_own_;
};

} // namespace gpu_sleep::test
