// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whether the agent is to be loaded into this program.

#pragma once

namespace gpu_sleep::login {

/// Not where GPU_SLEEP_DISABLE says so, and not into a program that a deny list means: /etc/gpu-sleep.deny,
/// and gpu-sleep.deny in the user's directory for configurations ($XDG_CONFIG_HOME, or $HOME/.config). Reads
/// both files, and takes no memory.
[[nodiscard]] bool is_wanted();

} // namespace gpu_sleep::login
