// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How processes stand as metrics in the text format of Prometheus. Nothing is asked or written here.

#pragma once

#include "control/ask.hpp"
#include "driver/management.hpp"

namespace gpu_sleep::cli {

/// All families of metrics, each with its HELP and TYPE, also those that nobody has. gpu-ps(1) describes
/// them. `gpus`: the machine's, as far as they are known; `now`: seconds since 1970. Labels are the UUID of a
/// GPU, the user and the name of a process: processes with the same are added up. Source: Prometheus,
/// Exposition formats, Text-based format.
[[nodiscard]] std::string render_metrics(const std::vector<control::Outcome>& outcomes,
                                         const std::vector<driver::Gpu>& gpus, std::int64_t now);

/// vLLM's gauge of how an engine sleeps, for each process that answered.
[[nodiscard]] std::string render_sleep_states(const std::vector<control::Outcome>& outcomes);

} // namespace gpu_sleep::cli
