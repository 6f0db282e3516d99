// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The gate follows the memory.

#include "operations/gate_settler.hpp"

#include "common/interception.hpp"

namespace gpu_sleep::agent::operations {

void settle_gate(ProgramMemory& memory, ProcessStatus& status) noexcept {
    if (intercepts() && !memory.settle_gate()) status.set_touch_trouble({});
}

} // namespace gpu_sleep::agent::operations
