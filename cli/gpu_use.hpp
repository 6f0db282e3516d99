// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What NVML knows of the GPUs of processes: what sleepers still have of them, and how they are numbered.

#pragma once

#include "cli/targets.hpp"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpu_sleep::cli {

/// Notes of each of which all sleeps what NVML says that it has of the GPUs: contexts, modules, and what
/// stays. Asks NVML only if there is one. Leaves unset what NVML does not know, as in a container, where its
/// pids are others. Not thread-safe.
void note_gpu_use(std::vector<Outcome>& outcomes);

/// For what a person reads: has reports number GPUs as NVML does, and nvidia-smi. A program that sees some of
/// them alone, or was moved, has others. Asks NVML once it is needed. Not thread-safe.
class GpuNumbers {
public:
    /// As it was if NVML does not know all GPUs of the report.
    [[nodiscard]] model::Report in(model::Report report);
    /// The same, for all reports.
    void put_into(std::vector<Outcome>& outcomes);

private:
    std::optional<std::map<std::string, int>> by_uuid_;
};

} // namespace gpu_sleep::cli
