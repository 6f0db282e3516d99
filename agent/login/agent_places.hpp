// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Where a library that is not the agent finds it: apart, because the library for the login environment lies
// beside it, and those for torch_memory_saver's callers beside Python's packages.

#pragma once

namespace gpu_sleep::login {

constexpr const char* k_agent = "libgpu-sleep-agent.so.0"; ///< by which one that is loaded is found

/// Its places, each ended by a zero, with one more at the end; and whether it is to intercept where the
/// environment does not say. torch_memory_saver's callers choose the memory themselves.
#ifdef GPU_SLEEP_BESIDE_PYTHON_PACKAGES
constexpr char k_agent_places[] =
    "$ORIGIN/../../../libexec/gpu-sleep/libgpu-sleep-agent.so\0" // an environment, or a home
    "$ORIGIN/libexec/gpu-sleep/libgpu-sleep-agent.so\0"          // pip install --target
    "$ORIGIN/libgpu-sleep-agent.so\0";
constexpr char k_intercepts = 0;
#else
constexpr char k_agent_places[] = "$ORIGIN/libgpu-sleep-agent.so\0";
constexpr char k_intercepts = 1;
#endif

} // namespace gpu_sleep::login
