// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What sleepers still have on the GPUs.

#pragma once

#include "cli/targets.hpp"

#include <vector>

namespace gpu_sleep::cli {

/// Notes of each of which all sleeps what NVML says that it has of the GPUs: contexts, modules, and what
/// stays. Asks NVML only if there is one. Leaves unset what NVML does not know, as in a container, where its
/// pids are others. Not thread-safe.
void note_gpu_use(std::vector<Outcome>& outcomes);

} // namespace gpu_sleep::cli
