// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The agent in the login environment and in containers: which files say so, written and taken back.
// gpu-enable(1) lists them. Those of logins set LD_PRELOAD. Other ways are worse: libcuda reads
// CUDA_INJECTION64_PATH in cuInit, when the CUDA runtime has looked its functions up already; LD_AUDIT
// complains of a missing path as well, and is slower; /etc/ld.so.preload reaches the system's services and
// programs with privileges; a start file of Python reaches Python alone, and too late.

#pragma once

#include "base/error.hpp"

#include <filesystem>
#include <vector>

namespace gpu_sleep::cli {

/// Whose programs get the agent.
struct LoginScope {
    bool is_machine = false;
    std::filesystem::path root = "/"; ///< the machine's files lie below it
};

/// Has logins and Jupyter's Python kernels load `library`. What is so already stays as it is; where nothing
/// was, an error leaves nothing. Returns the files that say so. Errors: those of write_carefully();
/// invalid_argument: there is no home directory, or it is somebody else's, or a file of the name of one of
/// ours is not ours.
[[nodiscard]] Result<std::vector<std::filesystem::path>> enable_login(const LoginScope& scope,
                                                                      const std::string& library);

/// Takes all of that back. A file that nobody has changed since is as it was, and of others only what is ours
/// is removed. Errors: as enable_login().
[[nodiscard]] Result<void> disable_login(const LoginScope& scope);

/// The files that enable_login() has made or changed; none if it is not enabled. Errors: as enable_login().
[[nodiscard]] Result<std::vector<std::filesystem::path>> login_files(const LoginScope& scope);

// ---- Containers: a description by which container engines mount the agent. It brings its own
// /etc/ld.so.preload, and sets no variable: an engine would set that in place of the image's or the user's
// own, LD_PRELOAD among them, and podman leaves it out of what `podman exec` starts. Source: the Container
// Device Interface, SPEC.md.

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
