// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Before contents are dropped that the program may need: whoever sits at a terminal is asked, a script is
// told.

#pragma once

#include "cli/targets.hpp"

#include <string>
#include <vector>

namespace gpu_sleep::cli {

/// A sentence for each of `targets` of which `request` would drop contents that the program has not declared
/// refillable. Rehearses the request, over connections of its own; who does not answer has none.
[[nodiscard]] std::vector<std::string> losses_of(const model::SleepRequest& request, Finder& finder,
                                                 const std::vector<Target>& targets);

/// Says them on standard error. At a terminal asks whether to go on; returns the answer, elsewhere true.
[[nodiscard]] bool accepts(const std::string& program, const std::vector<std::string>& losses, bool quiet);

} // namespace gpu_sleep::cli
