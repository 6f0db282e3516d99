// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Where the memory of a pool lies: addresses side by side, backed a chunk at a time, as POOLS.md has measured
// it. Which freed block a stream may have, and when a chunk goes.

#include "support/simulated_driver/memory_pools.hpp"

#include "base/units.hpp"
#include "support/simulated_driver/settings.hpp"
#include "support/simulated_driver/work.hpp"

#include <algorithm>
#include <vector>

namespace gpu_sleep::sim {
namespace {

constexpr auto k_chunk = k_pool_chunk;
constexpr std::uint64_t k_block_step = 512;

bool is_of(const PoolBlock& block, const MemoryPool& pool) {
    return block.pool.get() == &pool;
}

bool is_allowed(const MemoryPool& pool, CUmemPool_attribute attribute) {
    const auto found = pool.reuse.find(attribute);
    return found == pool.reuse.end() || found->second != 0;
}

/// Whether the stream has waited for it.
bool knows(const Stream& stream, const Ticket& ticket) {
    const auto found = stream.waited.find(ticket.timeline);
    return found != stream.waited.end() && found->second >= ticket.number;
}

/// Whether the stream may have what was freed, by the pool's switches.
bool may_have(const MemoryPool& pool, const PoolBlock& freed, const Stream& stream) {
    if (freed.state != PoolBlock::State::kept) return false;
    if (freed.freed.timeline == stream.last().timeline) return true;
    if (is_allowed(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC) && freed.freed.done()) return true;
    return is_allowed(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES) && knows(stream, freed.freed);
}

/// The first place of so many bytes in [begin, end), backed if it has to be; 0 for none.
std::uint64_t place_between(const MemoryPool& pool, std::uint64_t begin, std::uint64_t end,
                            std::uint64_t bytes, bool is_backed) {
    if (end - begin < bytes) return 0;
    if (!is_backed) return begin;
    auto from = begin;
    for (auto at = begin - begin % k_chunk; at < end; at += k_chunk) {
        if (!pool.chunks.contains(at)) from = at + k_chunk;
        if (from < end && std::min(end, at + k_chunk) >= from + bytes) return from;
    }
    return 0;
}

/// The lowest place for a block among what `is_free` says of blocks; 0 for none.
template <class IsFree>
std::uint64_t find_place(const Driver& driver, const MemoryPool& pool, std::uint64_t bytes, bool is_backed,
                         IsFree&& is_free) {
    auto free_from = pool.begin;
    const auto end = pool.begin + pool.length;
    for (auto at = driver.blocks.lower_bound(pool.begin); at != driver.blocks.end() && at->first < end;
         ++at) {
        if (is_free(at->second)) continue;
        if (const auto place = place_between(pool, free_from, at->first, bytes, is_backed)) return place;
        free_from = at->first + at->second.reserved;
    }
    return place_between(pool, free_from, end, bytes, is_backed);
}

/// Takes what was freed out of a span that is given out.
void claim(Driver& driver, std::uint64_t begin, std::uint64_t end) {
    auto at = driver.blocks.upper_bound(begin);
    if (at != driver.blocks.begin() && std::prev(at)->first + std::prev(at)->second.reserved > begin) --at;
    while (at != driver.blocks.end() && at->first < end) {
        const auto address = at->first;
        const auto block = at->second;
        at = driver.blocks.erase(at);
        const auto block_end = address + block.reserved;
        const auto put_back = [&](std::uint64_t from, std::uint64_t to) {
            auto& rest = driver.blocks[from] = block;
            rest.reserved = to - from;
            rest.bytes = std::min(rest.bytes, rest.reserved);
        };
        if (address < begin) put_back(address, begin);
        if (block_end > end) put_back(end, block_end);
    }
}

void remove_chunk(Driver& driver, MemoryPool& pool, std::uint64_t address) {
    driver.space.unmap(address, k_chunk);
    pool.chunks.erase(address);
    pool.reserved -= k_chunk;
}

bool is_empty(const Driver& driver, std::uint64_t chunk) {
    auto at = driver.blocks.lower_bound(chunk);
    if (at != driver.blocks.end() && at->first < chunk + k_chunk) return false;
    return at == driver.blocks.begin() || std::prev(at)->first + std::prev(at)->second.reserved <= chunk;
}

CUresult add_chunk(Driver& driver, MemoryPool& pool, std::uint64_t address) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = pool.handle_types;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, pool.device};
    const auto memory = Physical::create(driver.pool(pool.device), k_chunk, properties);
    if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
    auto status = driver.space.map(address, memory, Origin::pool);
    if (status != CUDA_SUCCESS) return status;
    pool.chunks.insert(address);
    pool.reserved += k_chunk;
    status = driver.space.set_access(address, k_chunk, std::uint32_t{1} << pool.device,
                                     CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    for (const auto& [device, flags] : pool.access)
        if (status == CUDA_SUCCESS)
            status = driver.space.set_access(address, k_chunk, std::uint32_t{1} << device, flags);
    if (status != CUDA_SUCCESS) remove_chunk(driver, pool, address);
    return status;
}

/// Backs the span; what it lacks is taken together or not at all.
CUresult back(Driver& driver, MemoryPool& pool, std::uint64_t begin, std::uint64_t end) {
    std::vector<std::uint64_t> missing;
    for (auto at = begin - begin % k_chunk; at < end; at += k_chunk)
        if (!pool.chunks.contains(at)) missing.push_back(at);
    const auto bytes = missing.size() * k_chunk;
    if (bytes > pool.most_bytes || pool.reserved > pool.most_bytes - bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    for (std::size_t added = 0; added < missing.size(); ++added) {
        const auto status = add_chunk(driver, pool, missing[added]);
        if (status == CUDA_SUCCESS) continue;
        while (added-- > 0) remove_chunk(driver, pool, missing[added]);
        return status;
    }
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
    return CUDA_SUCCESS;
}

CUresult reserve_addresses(Driver& driver, MemoryPool& pool) {
    if (pool.length != 0) return CUDA_SUCCESS;
    pool.length = round_up(2 * settings().memory_bytes, k_chunk);
    const auto status = driver.space.reserve(pool.length, k_chunk, 0, Origin::pool, pool.begin);
    if (status != CUDA_SUCCESS) pool.length = 0;
    return status;
}

CUresult give_out(Driver& driver, const std::shared_ptr<MemoryPool>& pool, const Context& context,
                  std::uint64_t bytes, std::uint64_t begin, CUdeviceptr& address) {
    const auto reserved = round_up(bytes, k_block_step);
    if (const auto status = back(driver, *pool, begin, begin + reserved); status != CUDA_SUCCESS)
        return status;
    claim(driver, begin, begin + reserved);
    driver.blocks[begin] = {pool, bytes,           reserved, context.owner, PoolBlock::State::live,
                            {},   driver.next_id++};
    pool->used += bytes;
    pool->used_high = std::max(pool->used_high, pool->used);
    address = begin;
    return CUDA_SUCCESS;
}

/// Gives chunks back, the highest first, while `wanted` says so of what would be left.
template <class Wanted>
void give_back(Driver& driver, MemoryPool& pool, Wanted&& wanted) {
    std::vector<std::uint64_t> chunks(pool.chunks.rbegin(), pool.chunks.rend());
    for (const auto chunk : chunks)
        if (wanted(pool.reserved - k_chunk) && is_empty(driver, chunk)) remove_chunk(driver, pool, chunk);
    const bool is_over = pool.chunks.empty() && !driver.memory_pools.find(pool.handle);
    if (!is_over || pool.length == 0) return;
    driver.space.free_reservation(pool.begin, pool.length);
    pool.length = 0;
}

void keep_to_threshold(Driver& driver, MemoryPool& pool) {
    const auto threshold = driver.memory_pools.find(pool.handle) ? pool.threshold : 0;
    give_back(driver, pool, [&](std::uint64_t left) { return left + k_chunk > threshold; });
}

std::vector<std::shared_ptr<MemoryPool>> pools_of_blocks(const Driver& driver) {
    std::vector<std::shared_ptr<MemoryPool>> pools;
    for (const auto& [begin, block] : driver.blocks)
        if (std::find(pools.begin(), pools.end(), block.pool) == pools.end()) pools.push_back(block.pool);
    return pools;
}

/// Every pool gives back what it may now that some of what was freed is known to be done.
template <class IsKnown>
void forget_freed(Driver& driver, IsKnown&& is_known) {
    auto pools = pools_of_blocks(driver);
    std::erase_if(driver.blocks, [&](const auto& entry) {
        return entry.second.state == PoolBlock::State::kept && is_known(entry.second.freed);
    });
    driver.memory_pools.for_each([&](CUmemoryPool, MemoryPool& pool) { keep_to_threshold(driver, pool); });
    for (const auto& pool : pools)
        if (!driver.memory_pools.find(pool->handle)) keep_to_threshold(driver, *pool);
}

} // namespace

CUresult allocate_from(Driver& driver, const std::shared_ptr<MemoryPool>& pool, Stream& stream,
                       std::uint64_t bytes, CUdeviceptr& address) {
    if (const auto status = reserve_addresses(driver, *pool); status != CUDA_SUCCESS) return status;
    const auto reserved = round_up(bytes, k_block_step);
    const auto is_free = [&](const PoolBlock& block) { return may_have(*pool, block, stream); };
    auto begin = find_place(driver, *pool, reserved, true, is_free);
    if (begin == 0) begin = find_place(driver, *pool, reserved, false, is_free);
    auto status =
        begin == 0 ? CUDA_ERROR_OUT_OF_MEMORY : give_out(driver, pool, stream.context, bytes, begin, address);
    if (status != CUDA_ERROR_OUT_OF_MEMORY ||
        !is_allowed(*pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES))
        return status;
    // It cannot grow: the stream waits for those that may still use what was freed.
    const auto is_freed = [](const PoolBlock& block) { return block.state == PoolBlock::State::kept; };
    begin = find_place(driver, *pool, reserved, true, is_freed);
    if (begin == 0) return status;
    std::vector<Ticket> after;
    for (const auto& [at, block] : driver.blocks)
        if (is_of(block, *pool) && is_freed(block)) after.push_back(block.freed);
    enqueue(stream, std::move(after), nullptr);
    return give_out(driver, pool, stream.context, bytes, begin, address);
}

void free_in_order(Driver& driver, CUdeviceptr address, const Ticket& freed) {
    auto& block = driver.blocks.at(address);
    block.pool->used -= block.bytes;
    block.state = PoolBlock::State::kept;
    block.freed = freed;
}

void free_block(Driver& driver, CUdeviceptr address) {
    const auto found = driver.blocks.find(address);
    if (found == driver.blocks.end() || found->second.state != PoolBlock::State::live) return;
    // The bytes used stay what they were: so the driver does it, for good.
    const auto pool = found->second.pool;
    driver.blocks.erase(found);
    keep_to_threshold(driver, *pool);
}

bool is_freed(const PoolBlock& block) {
    return block.state == PoolBlock::State::kept && block.freed.done();
}

void synchronize_pools(Driver& driver, const std::vector<Ticket>& known) {
    forget_freed(driver, [&](const Ticket& freed) {
        return std::any_of(known.begin(), known.end(), [&](const Ticket& ticket) {
            return ticket.timeline == freed.timeline && ticket.number >= freed.number;
        });
    });
}

void synchronize_all_pools(Driver& driver) {
    forget_freed(driver, [](const Ticket& freed) { return freed.done(); });
}

void trim(Driver& driver, MemoryPool& pool, std::uint64_t bytes) {
    give_back(driver, pool, [&](std::uint64_t left) { return left >= bytes; });
}

void free_pool_memory_of(Driver& driver, const Context& context) {
    // Memory of pools outlives contexts, but for the device's primary one.
    for (auto at = driver.blocks.begin(); at != driver.blocks.end();) {
        auto& block = at->second;
        const bool goes = block.context == &context && context.primary;
        if (goes && block.state == PoolBlock::State::live) block.pool->used -= block.bytes;
        if (block.context == &context) block.context = nullptr;
        const auto pool = block.pool;
        at = goes ? driver.blocks.erase(at) : std::next(at);
        if (goes) keep_to_threshold(driver, *pool);
    }
    synchronize_all_pools(driver);
}

} // namespace gpu_sleep::sim
