// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Control groups of the test's own, where the machine lets it make some: one that limits memory, and one that
// freezes what is in it, as batch systems do.

#pragma once

#include "support/catch.hpp"

#include <sys/types.h>

namespace gpu_sleep::test {

/// Made empty, version 1 or 2; what is still in it goes back to the parent group at the end.
class OwnGroup : NotCopied {
public:
    /// False where none could be made.
    explicit operator bool() const noexcept { return !path_.empty(); }

    /// Moves a process into it. What the process uses already stays with its former group in version 1.
    void take(pid_t process) const;

protected:
    /// A group of the version 1 `controller`, which has the file `in_1`, or of version 2, with `in_2`.
    OwnGroup(const std::string& controller, const char* in_1, const char* in_2);
    ~OwnGroup();
    [[nodiscard]] bool write(const char* in_1, const char* in_2, const std::string& text) const;
    [[nodiscard]] std::string read(const char* in_1, const char* in_2) const;

    bool is_version_2_ = false;

private:
    std::filesystem::path path_; ///< empty for none
};

class ControlGroup : public OwnGroup {
public:
    ControlGroup() : OwnGroup("memory", "memory.limit_in_bytes", "memory.max") {}

    /// Bytes of memory that the group may use.
    void limit(std::size_t bytes) const {
        REQUIRE(write("memory.limit_in_bytes", "memory.max", std::to_string(bytes)));
    }
    /// Bytes of memory that it uses.
    [[nodiscard]] std::size_t usage() const {
        return std::stoull(read("memory.usage_in_bytes", "memory.current"));
    }
};

/// What is in it is thawed at the end.
class Freezer : public OwnGroup {
public:
    Freezer() : OwnGroup("freezer", "freezer.state", "cgroup.freeze") {}
    ~Freezer() {
        if (*this) thaw();
    }

    /// Waits until all that is in it is frozen.
    void freeze() const;
    void thaw() const { CHECK(write("freezer.state", "cgroup.freeze", is_version_2_ ? "0" : "THAWED")); }
};

} // namespace gpu_sleep::test
