// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents that stay in host memory while their memory is awake, so that the next sleep copies only what has
// changed: how they give way to everybody else.

#pragma once

#include "base/units.hpp"
#include "program_memory/program_memory.hpp"

namespace gpu_sleep::agent {

/// How often the host's memory is looked at while something is retained.
inline constexpr Milliseconds k_between_looks_at_host{500};

/// Gives up what of the retained contents the host misses: never more is retained than what the host, or the
/// process's control group, has available besides, less contents::k_left_available. Returns whether something
/// is still retained, so that it is to be looked at again. On the operations thread.
bool give_way(ProgramMemory& memory);

} // namespace gpu_sleep::agent
