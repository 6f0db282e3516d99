// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A control group that freezes what is in it, as batch systems do, where the machine lets a test make one.

#pragma once

#include <sys/types.h>

#include <filesystem>

namespace gpu_sleep::test {

/// Made empty, version 1 or 2; what is still in it is thawed and goes back to the parent group at the end.
class Freezer {
public:
    Freezer();
    Freezer(const Freezer&) = delete;
    Freezer& operator=(const Freezer&) = delete;
    ~Freezer();

    /// False where none could be made.
    explicit operator bool() const noexcept { return !path_.empty(); }

    void take(pid_t process) const;
    /// Waits until all that is in it is frozen.
    void freeze() const;
    void thaw() const;

private:
    std::filesystem::path path_; ///< empty for none
    bool is_version_2_ = false;
};

} // namespace gpu_sleep::test
