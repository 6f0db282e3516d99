// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The agent in containers: a description by which container engines mount it. It brings its own
// /etc/ld.so.preload, and sets no variable: an engine would set that in place of the image's or the user's
// own, LD_PRELOAD among them, and podman leaves it out of what `podman exec` starts. Source: the Container
// Device Interface, SPEC.md.

#pragma once

#include "base/error.hpp"

#include <filesystem>
#include <vector>

namespace gpu_sleep::cli {

/// Has the container engines of the machine whose files lie below `root` give containers `library`, the agent
/// beside it, and the commands in the directory `commands`. Returns the file that says so. Errors: those of
/// write_carefully(); invalid_argument: a file of that name is not ours, or others may not read what the
/// containers of this machine would load.
[[nodiscard]] Result<std::vector<std::filesystem::path>>
enable_containers(const std::filesystem::path& root, const std::filesystem::path& commands,
                  const std::filesystem::path& library);

/// Takes that back. Errors: as enable_containers().
[[nodiscard]] Result<void> disable_containers(const std::filesystem::path& root);

/// The file that says so; none if it is not there, or not ours. Errors: those of read_carefully().
[[nodiscard]] Result<std::vector<std::filesystem::path>> container_files(const std::filesystem::path& root);

} // namespace gpu_sleep::cli
