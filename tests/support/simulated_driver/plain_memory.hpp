// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Plain allocations, as cuMemAlloc makes them: memory that belongs to a context.

#pragma once

#include "support/simulated_driver/driver.hpp"

namespace gpu_sleep::sim {

/// Frees the plain allocations of a context that is being destroyed.
void free_plain_memory_of(Driver& driver, const Context& context);

} // namespace gpu_sleep::sim
