// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The checks of the driver and its GPUs, for the table in machine_checks.cpp.

#pragma once

#include "cli/doctor/checks.hpp"

namespace gpu_sleep::cli::doctor {

[[nodiscard]] Findings judge_driver(const MachineFacts& machine);
[[nodiscard]] Findings judge_module(const MachineFacts& machine);
[[nodiscard]] Findings judge_management(const MachineFacts& machine);
[[nodiscard]] Findings judge_gpus(const MachineFacts& machine);
[[nodiscard]] Findings judge_checkpoint(const MachineFacts& machine);
[[nodiscard]] Findings judge_persistence(const MachineFacts& machine);
[[nodiscard]] Findings judge_modes(const MachineFacts& machine);
[[nodiscard]] Findings judge_mig(const MachineFacts& machine);
[[nodiscard]] Findings judge_mps(const MachineFacts& machine);
[[nodiscard]] Findings judge_link(const MachineFacts& machine);

} // namespace gpu_sleep::cli::doctor
