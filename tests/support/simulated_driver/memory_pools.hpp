// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What memory pools hold: taking memory from one, and giving it back. All under the driver's lock.

#pragma once

#include "support/simulated_driver/driver.hpp"

namespace gpu_sleep::sim {

/// Takes `bytes` from `pool`, from what it keeps or from its device. Errors: INVALID_VALUE, OUT_OF_MEMORY.
CUresult allocate_from(Driver& driver, const std::shared_ptr<MemoryPool>& pool, const Context& context,
                       std::uint64_t bytes, CUdeviceptr& address);

/// Gives the block at `address` back to its pool, which keeps it while its threshold allows.
void free_block(Driver& driver, CUdeviceptr address);

/// Gives back to the device what `pool` keeps, until it has no more than `bytes` reserved.
void trim(Driver& driver, const MemoryPool& pool, std::uint64_t bytes);

/// Frees what was allocated in a context that is being destroyed.
void free_pool_memory_of(Driver& driver, const Context& context);

} // namespace gpu_sleep::sim
