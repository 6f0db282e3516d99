// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A memory control group of the test's own, where the machine lets it make one.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>

namespace gpu_sleep::test {

/// Made empty, version 1 or 2; what is still in it goes back to the parent group at the end.
class ControlGroup {
public:
    ControlGroup();
    ControlGroup(const ControlGroup&) = delete;
    ControlGroup& operator=(const ControlGroup&) = delete;
    ~ControlGroup();

    /// False where none could be made.
    explicit operator bool() const noexcept { return !path_.empty(); }

    /// Moves a process into it. What the process uses already stays with its former group in version 1.
    void take(pid_t process) const;
    /// Bytes of memory that the group may use.
    void limit(std::size_t bytes) const;
    /// Bytes of memory that it uses.
    [[nodiscard]] std::size_t usage() const;

private:
    std::filesystem::path path_; ///< empty for none
    bool is_version_2_ = false;
};

} // namespace gpu_sleep::test
