// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What memory pools hold: taking memory from one, and giving it back. All under the driver's lock.

#pragma once

#include "support/simulated_driver/driver.hpp"

#include <vector>

namespace gpu_sleep::sim {

/// Takes `bytes` from `pool` for `stream`: what was freed and it may have, else from the device. Errors:
/// OUT_OF_MEMORY.
CUresult allocate_from(Driver& driver, const std::shared_ptr<MemoryPool>& pool, const Stream& stream,
                       std::uint64_t bytes, CUdeviceptr& address);

/// Makes `memory` of another process a block of `pool`, `bytes` long.
CUresult import_block(Driver& driver, const std::shared_ptr<MemoryPool>& pool, const Context& context,
                      std::shared_ptr<Physical> memory, std::uint64_t bytes, CUdeviceptr& address);

/// Opens all memory of the pool to the devices that it is open to.
CUresult grant_access(Driver& driver, const MemoryPool& pool);

/// Gives the block at `address`, which is live, back to its pool, for others once `freed` is reached.
void free_in_order(Driver& driver, CUdeviceptr address, const Ticket& freed);

/// Gives the block at `address`, which is live, back to its pool; nobody uses it any more.
void free_block(Driver& driver, CUdeviceptr address);

/// Whether the block's stream got to where it was freed.
[[nodiscard]] bool is_freed(const PoolBlock& block);

/// The program waited for work: pools give back what was freed by then, down to their thresholds.
void synchronize_pools(Driver& driver, const std::vector<Ticket>& reached);
/// The same for all work that is done.
void synchronize_all_pools(Driver& driver);

/// Gives back to the device what was freed and waited for, while at least `bytes` stay reserved.
void trim(Driver& driver, const MemoryPool& pool, std::uint64_t bytes);

/// The context is being destroyed.
void free_pool_memory_of(Driver& driver, const Context& context);

} // namespace gpu_sleep::sim
