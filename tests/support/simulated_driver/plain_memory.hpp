// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Plain allocations, as cuMemAlloc makes them: memory that belongs to a context.

#pragma once

#include "support/simulated_driver/driver.hpp"

namespace gpu_sleep::sim {

/// Makes `memory` a plain allocation of `context`, `bytes` long. Errors: OUT_OF_MEMORY.
CUresult add_plain_memory(Driver& driver, const Context& context, std::shared_ptr<Physical> memory,
                          std::uint64_t bytes, PlainAllocation::Kind kind, CUdeviceptr& address);

/// Frees the plain allocation at `address`, if there is one.
void free_plain_memory(Driver& driver, CUdeviceptr address);

/// Frees the plain allocations of a context that is being destroyed.
void free_plain_memory_of(Driver& driver, const Context& context);

} // namespace gpu_sleep::sim
