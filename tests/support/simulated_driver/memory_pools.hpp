// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What memory pools hold: taking memory from one, and giving it back. All under the driver's lock.

#pragma once

#include "support/simulated_driver/driver.hpp"

#include <vector>

namespace gpu_sleep::sim {

/// What a pool takes from its device at a time.
inline constexpr std::uint64_t k_pool_chunk = std::uint64_t{32} << 20;

/// Takes `bytes` from `pool` for `stream`: what was freed and it may have, else from the device. The stream
/// may have to wait for others, and does. Errors: OUT_OF_MEMORY.
CUresult allocate_from(Driver& driver, const std::shared_ptr<MemoryPool>& pool, Stream& stream,
                       std::uint64_t bytes, CUdeviceptr& address);

/// Gives the block at `address`, which is live, back to its pool, for others once `freed` is reached.
void free_in_order(Driver& driver, CUdeviceptr address, const Ticket& freed);

/// Gives the block at `address` back to its pool; nobody uses it any more.
void free_block(Driver& driver, CUdeviceptr address);

/// Whether the block's stream got to where it was freed.
[[nodiscard]] bool is_freed(const PoolBlock& block);

/// The program waited for the work: pools give back what was freed by then, down to their thresholds.
void synchronize_pools(Driver& driver, const std::vector<Ticket>& known);
/// The same for all work that is done.
void synchronize_all_pools(Driver& driver);

/// Gives back to the device what was freed and waited for, until `pool` has no more than `bytes` reserved.
void trim(Driver& driver, MemoryPool& pool, std::uint64_t bytes);

/// The context is being destroyed.
void free_pool_memory_of(Driver& driver, const Context& context);

} // namespace gpu_sleep::sim
