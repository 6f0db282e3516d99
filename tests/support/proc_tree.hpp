// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A tree in a temporary directory that looks like a proc file system and a root file system beside it.

#pragma once

#include "support/catch.hpp"

#include <sys/types.h>

namespace gpu_sleep::test {

/// One process of a ProcTree.
struct FakeProcess {
    pid_t pid = 0;
    pid_t inner_pid = 0; ///< 0 for the same as pid
    pid_t parent = 1;
    uid_t uid = ::getuid();
    std::uint64_t start_time = 1;
    std::string name = "program";
    std::string arguments = {}; ///< as /proc/PID/cmdline has them: each ended by NUL
};

/// Made empty, but for /tmp in the root; removed at the end.
class ProcTree {
public:
    ProcTree();

    [[nodiscard]] std::filesystem::path proc() const { return scratch_.path() / "proc"; }
    [[nodiscard]] std::filesystem::path root() const { return scratch_.path() / "root"; }

    /// Adds a process, or changes it, with the tree's root as its root.
    void add(const FakeProcess& process) const;

    /// Writes a file of the tree and makes the directories that it needs.
    void write(const std::string& name, const std::string& text) const;

    /// Makes the private directory NAME in the root's /tmp.
    [[nodiscard]] std::filesystem::path add_agent_directory(const std::string& name) const;

private:
    Scratch scratch_;
};

} // namespace gpu_sleep::test
