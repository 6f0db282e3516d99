// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Where a test finds the tree's files and the build's libraries. Asked at run time, so that what is compiled
// holds no path and is the same in every clone.

#pragma once

#include <string>
#include <string_view>

namespace gpu_sleep::test {

/// The path of a file of the tree, such as "cli/man/gpu-ps.1".
[[nodiscard]] std::string source_file(std::string_view path);

/// The path of a library of this build by its file's name, such as "libgpu-sleep-login.so"; of the build that
/// GPU_SLEEP_SANITIZED_BUILD names where that is set (see command_file).
[[nodiscard]] std::string library_file(std::string_view name);

/// The agent, by the name under which programs load it.
[[nodiscard]] inline std::string agent_file() {
    return library_file("libgpu-sleep-agent.so.0");
}

} // namespace gpu_sleep::test
