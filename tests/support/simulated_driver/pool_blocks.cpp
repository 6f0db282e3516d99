// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The blocks of pools, each with memory of its own: which freed one a stream may have, and when one goes.

#include "support/simulated_driver/memory_pools.hpp"

#include "support/simulated_driver/tries.hpp"

#include "base/units.hpp"

#include <algorithm>

namespace gpu_sleep::sim {
namespace {

using Blocks = std::map<std::uint64_t, PoolBlock>;

/// Whether the stream may have what was freed, by the pool's switches.
bool may_have(const MemoryPool& pool, const PoolBlock& block, const Stream& stream) {
    if (!block.freed.timeline || block.freed.timeline == stream.last().timeline) return true;
    const auto found = pool.reuse.find(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC);
    return (found == pool.reuse.end() || found->second != 0) && block.freed.done();
}

/// The smallest freed block that the stream may have for so many bytes; the end for none.
Blocks::iterator find_kept(Driver& driver, const MemoryPool& pool, const Stream& stream,
                           std::uint64_t reserved) {
    auto best = driver.blocks.end();
    for (auto at = driver.blocks.begin(); at != driver.blocks.end(); ++at) {
        const auto& block = at->second;
        const bool fits = block.pool.get() == &pool && block.state == PoolBlock::State::kept &&
                          block.reserved >= reserved && block.reserved / 2 <= reserved &&
                          may_have(pool, block, stream);
        if (fits && (best == driver.blocks.end() || block.reserved < best->second.reserved)) best = at;
    }
    return best;
}

Blocks::iterator remove_block(Driver& driver, Blocks::iterator at) {
    driver.space.remove(at->first);
    at->second.pool->reserved -= at->second.reserved;
    return driver.blocks.erase(at);
}

/// Gives back what was freed and waited for, while `wanted` says so of the pool and of what it would have
/// left.
template <class Wanted>
void give_back(Driver& driver, Wanted&& wanted) {
    for (auto at = driver.blocks.begin(); at != driver.blocks.end();) {
        const auto& block = at->second;
        const bool goes = block.state == PoolBlock::State::kept && !block.freed.timeline &&
                          wanted(*block.pool, block.pool->reserved - block.reserved);
        at = goes ? remove_block(driver, at) : std::next(at);
    }
}

/// What was freed and is done, as `is_known` says, is anybody's from now on, and given back down to the
/// thresholds.
template <class IsKnown>
void forget_freed(Driver& driver, IsKnown&& is_known) {
    for (auto& [begin, block] : driver.blocks)
        if (is_freed(block) && is_known(block.freed)) block.freed = {};
    give_back(driver, [&](const MemoryPool& pool, std::uint64_t) {
        return pool.reserved > pool.threshold || !driver.memory_pools.find(pool.handle);
    });
}

/// A block of that memory.
CUresult place_block(Driver& driver, const std::shared_ptr<MemoryPool>& pool,
                     std::shared_ptr<Physical> memory, Blocks::iterator& at) {
    const auto reserved = memory->bytes();
    std::uint64_t begin = 0;
    SIM_TRY(driver.space.place(std::move(memory), Origin::pool, pool->device, begin));
    at = driver.blocks.try_emplace(begin).first;
    at->second.pool = pool;
    at->second.reserved = reserved;
    pool->reserved += reserved;
    const auto granted = grant_access(driver, *pool);
    if (granted != CUDA_SUCCESS) remove_block(driver, at);
    pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
    return granted;
}

/// A block of new memory.
CUresult take_new(Driver& driver, const std::shared_ptr<MemoryPool>& pool, std::uint64_t reserved,
                  Blocks::iterator& at) {
    if (reserved > pool->most_bytes || pool->reserved > pool->most_bytes - reserved)
        return CUDA_ERROR_OUT_OF_MEMORY;
    SIM_FIND(memory, Physical::create(driver.pool(pool->device), reserved, pool->handle_types),
             CUDA_ERROR_OUT_OF_MEMORY);
    return place_block(driver, pool, memory, at);
}

CUdeviceptr give_out(Driver& driver, const std::shared_ptr<MemoryPool>& pool, const Context& context,
                     std::uint64_t bytes, Blocks::iterator at) {
    at->second = {pool, bytes,           at->second.reserved, context.owner, PoolBlock::State::live,
                  {},   driver.next_id++};
    pool->used += bytes;
    pool->used_high = std::max(pool->used_high, pool->used);
    return at->first;
}

} // namespace

CUresult allocate_from(Driver& driver, const std::shared_ptr<MemoryPool>& pool, const Stream& stream,
                       std::uint64_t bytes, CUdeviceptr& address) {
    const auto reserved = round_up(bytes, k_page);
    auto at = find_kept(driver, *pool, stream, reserved);
    if (at == driver.blocks.end()) SIM_TRY(take_new(driver, pool, reserved, at));
    address = give_out(driver, pool, stream.context, bytes, at);
    return CUDA_SUCCESS;
}

CUresult import_block(Driver& driver, const std::shared_ptr<MemoryPool>& pool, const Context& context,
                      std::shared_ptr<Physical> memory, std::uint64_t bytes, CUdeviceptr& address) {
    auto at = driver.blocks.end();
    SIM_TRY(place_block(driver, pool, std::move(memory), at));
    address = give_out(driver, pool, context, bytes, at);
    return CUDA_SUCCESS;
}

CUresult grant_access(Driver& driver, const MemoryPool& pool) {
    for (const auto& [begin, block] : driver.blocks) {
        if (block.pool.get() != &pool) continue;
        for (const auto& [device, flags] : pool.access) {
            const auto status =
                driver.space.set_access(begin, block.reserved, std::uint32_t{1} << device, flags);
            if (status != CUDA_SUCCESS) return status;
        }
    }
    return CUDA_SUCCESS;
}

void free_in_order(Driver& driver, CUdeviceptr address, const Ticket& freed) {
    auto& block = driver.blocks.at(address);
    block.pool->used -= block.bytes;
    block.state = PoolBlock::State::kept;
    block.freed = freed;
}

void free_block(Driver& driver, CUdeviceptr address) {
    free_in_order(driver, address, {});
    synchronize_pools(driver, {});
}

bool is_freed(const PoolBlock& block) {
    return block.state == PoolBlock::State::kept && block.freed.done();
}

void synchronize_pools(Driver& driver, const std::vector<Ticket>& reached) {
    forget_freed(driver, [&](const Ticket& freed) {
        return std::any_of(reached.begin(), reached.end(), [&](const Ticket& ticket) {
            return ticket.timeline == freed.timeline && ticket.number >= freed.number;
        });
    });
}

void synchronize_all_pools(Driver& driver) {
    forget_freed(driver, [](const Ticket&) { return true; });
}

void trim(Driver& driver, const MemoryPool& pool, std::uint64_t bytes) {
    give_back(driver,
              [&](const MemoryPool& of, std::uint64_t left) { return &of == &pool && left >= bytes; });
}

void free_pool_memory_of(Driver& driver, const Context& context) {
    // Memory of pools outlives contexts, but for the device's primary one.
    for (auto at = driver.blocks.begin(); at != driver.blocks.end();) {
        auto& block = at->second;
        const bool goes = block.context == &context && context.primary;
        if (goes && block.state == PoolBlock::State::live) block.pool->used -= block.bytes;
        if (block.context == &context) block.context = nullptr;
        at = goes ? remove_block(driver, at) : std::next(at);
    }
    synchronize_all_pools(driver);
}

} // namespace gpu_sleep::sim
